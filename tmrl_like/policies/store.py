"""A run's policies on disk: the newest versions for a while, those with a tag for good.

    policies/
      1200.safetensors    version 1200
      best.safetensors    the tag `best`, a name of its own for the same file

Each is a whole policy file (`policy_file`), which is never changed: another one takes its name, in one step. So anybody
may read at any time, and what one process removes stays whole for another one that has it open.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tmrl_like.base.files import disk, link_atomically, remove_drafts, write_atomically
from tmrl_like.base.text import suggestion
from tmrl_like.config.paths import data_folder
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.policies.policy_file import PolicyCard, read_card, read_policy, with_card

log = logging.getLogger("tmrl_like.policies")

FOLDER = "policies"  # in the run's
NEWEST = "newest"
BEST = "best"

_SUFFIX = ".safetensors"
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


class PolicyStore:
    """The folder. Any number of processes may read it and tag, one adds versions."""

    def __init__(self, folder: Path) -> None:
        """Nothing is made until there is something to keep."""
        self.folder = folder

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and name[0] != "."]

    def versions(self) -> list[int]:
        """Those that are kept for a while, oldest first."""
        return sorted(int(name) for name in self._names() if name.isdecimal())

    def tags(self) -> list[str]:
        """By name."""
        return sorted(name for name in self._names() if not name.isdecimal())

    def path(self, name: str | int) -> Path:
        """Where a version or a tag is, if it is there."""
        return self.folder / f"{name}{_SUFFIX}"

    def cards(self) -> Iterator[tuple[str, PolicyCard]]:
        """What is there, by version or tag; what is removed meanwhile is left out."""
        for name in [*map(str, self.versions()), *self.tags()]:
            try:
                card = read_card(self.path(name))
            except FileNotFoundError:
                continue
            except PolicyError as error:
                log.warning("%s; it is passed over", error)
                continue
            if card is not None:
                yield name, card

    def find(self, which: str) -> Path:
        """The file of a version, a tag or `newest`.

        Raises:
            PolicyError: there is none.
        """
        versions = self.versions()
        if which == NEWEST and versions:
            return self._newest_whole(versions)
        if self.path(which).is_file():
            return self.path(which)
        tags = self.tags()
        for tag in tags if which.isdecimal() else ():
            card = read_card(self.path(tag))
            if card is not None and card.version == int(which):
                return self.path(tag)
        kept = f"versions {versions[0]} to {versions[-1]}" if versions else "no versions"
        more = suggestion(which, tags) if tags and not which.isdecimal() else f"tags: {', '.join(tags) or 'none'}"
        raise PolicyError(
            f"there is no policy {which} in {self.folder}, but {kept}; {more}. It is on the trainer's machine: there "
            "`tmrl-like policies export` writes a file, which can be copied"
        )

    def _newest_whole(self, versions: list[int]) -> Path:
        """Passes over what is damaged."""
        *older, path = map(self.path, versions)
        try:
            read_policy(path)
        except (PolicyError, OSError) as error:
            if not older:
                raise
            log.warning("%s; taking the version before", error)
            return self._newest_whole(versions[:-1])
        return path

    # -- the trainer ---------------------------------------------------------------------------------

    def add(self, weights: bytes | memoryview, card: PolicyCard) -> Path:
        """Keep a version; `weights` are a file. OSError: it cannot be written."""
        path = self.path(card.version)
        write_atomically(path, *with_card(weights, card))
        return path

    def add_return(self, version: int, return_: float) -> bool:
        """A version's test episode ended. Whether `best` is another one now.

        That is the version whose mean return, less its standard error, is highest. Few versions have enough episodes to
        say how much these differ, so the standard deviation is that of all versions together.

        Raises:
            PolicyError: the version is not kept any more.
            OSError: it cannot be written.
        """
        path = self.find(str(version))
        card, weights = read_policy(path)
        if card is None:
            return False
        mean, episodes = card.return_ if card.return_ is not None else return_, card.episodes + 1
        moved = mean + (return_ - mean) / episodes
        squares = card.std**2 * max(0, card.episodes - 1) + (return_ - mean) * (return_ - moved)
        std = math.sqrt(squares / max(1, card.episodes))
        card = msgspec.structs.replace(card, return_=moved, std=std, episodes=episodes)
        write_atomically(path, *with_card(weights, card))
        tested: dict[int, tuple[PolicyCard, str]] = {}
        for name, found in self.cards():  # of a version and its tags the version first, whose mean is the newest
            if found.return_ is not None:
                tested.setdefault(found.version, (found, name))
        degrees = sum(found.episodes - 1 for found, _ in tested.values())
        spread = math.sqrt(sum(found.std**2 * (found.episodes - 1) for found, _ in tested.values()) / max(1, degrees))

        def at_least(version: int) -> tuple[float, int]:
            found, _ = tested[version]
            return (found.return_ or 0.0) - spread / math.sqrt(found.episodes), version

        best = max(tested, key=at_least)
        name = tested[best][1]
        before = read_card(self.path(BEST)) if self.path(BEST).is_file() else None
        if name != BEST:
            link_atomically(self.path(name), self.path(BEST))
        return before is None or before.version != best

    def collect(self, at_most: int) -> int:
        """Remove all versions but the newest, one at least; how many were removed."""
        removed = 0
        remove_drafts(self.folder)
        for version in self.versions()[: -max(1, at_most)]:
            try:
                disk.remove(self.path(version))
                removed += 1
            except OSError:  # Windows, where somebody reads it: the next time then
                continue
        return removed

    # -- anybody -------------------------------------------------------------------------------------

    def tag(self, which: str, name: str) -> Path:
        """Keep a policy for good, under a name of its own; one that has the name loses it.

        Raises:
            ConfigError: no name for a tag.
            PolicyError: there is no such policy.
            OSError: it cannot be written.
        """
        if not _TAG.fullmatch(name) or name == NEWEST:
            raise ConfigError(f"the tag is {name!r}; expected a letter, then letters, digits, '.', '_' and '-'")
        link_atomically(self.find(which), self.path(name))
        disk.sync_folder(self.folder)
        return self.path(name)


def split_place(where: str | Path) -> tuple[Path, str]:
    """`RUN`, `RUN@TAG`, `RUN@1200`, the same with a folder -> the folder of the policies, and which one.

    Raises:
        PolicyError: there is no such run.
    """
    place, _, which = (str(where), "", "") if Path(where).is_dir() else str(where).rpartition("@")
    if not place:
        place, which = which, ""
    folders = [folder for run in (Path(place), data_folder() / "runs" / place) for folder in (run / FOLDER, run)]
    folder = next((folder for folder in folders if next(folder.glob(f"*{_SUFFIX}"), None)), None)
    if folder is None:
        raise PolicyError(
            f"there are no policies at {where}: expected a policy file, a run's folder or its name, with @TAG or "
            f"@VERSION behind it; looked for {folders[0]} and {folders[2]}"
        )
    return folder, which or NEWEST


def find_policy(where: str | Path, own: Path | None = None) -> Path:
    """The policy file that `where` names: a file, or one of a run's policies as in `split_place`.

    With the folder of a run's `own` policies a version or a tag alone is one of these.

    Raises:
        PolicyError: there is none.
    """
    if Path(where).is_file():
        return Path(where)
    folder, which = split_place(where) if own is None or "@" in str(where) else (own, str(where))
    return PolicyStore(folder).find(which)
