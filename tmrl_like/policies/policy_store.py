"""A run's policies on disk: the newest versions are kept for a while, those with a tag for good.

    policies/
      1200.safetensors    version 1200
      best.safetensors    the tag `best`, a name of its own for the same file

Each is a whole policy file (`policy_file`) that is never changed, but replaced atomically. Any
process may therefore read at any time, and a file that one process removes stays whole for another
that has it open.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tmrl_like.base.files import disk, link_atomically, remove_drafts
from tmrl_like.base.folders import data_folder
from tmrl_like.base.text import nearest
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.policies.policy_file import PolicyCard, read_card, read_policy, write_policy
from tmrl_like.policies.weight_file import Weights

log = logging.getLogger("tmrl_like.policies")

FOLDER = "policies"  # in the run's
NEWEST = "newest"
BEST = "best"
# tags that users cannot set; some file systems do not tell upper from lower case
AUTOMATIC = re.compile(rf"{NEWEST}|{BEST}(-\d+)?|step-\d+(-\d+)?", re.IGNORECASE)
TESTS = 3  # test episodes that a version needs before it replaces the best one

_LAST_TESTED = 16
_LARGEST = 1e150  # return whose square is finite; a larger one counts as this
_SUFFIX = ".safetensors"
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


class PolicyStore:
    """The folder of a run's policies. Any number of processes may read and tag; one adds
    versions.
    """

    def __init__(self, folder: Path, earlier: int = 0) -> None:
        """Keep the path; the folder is made with the first policy. Versions up to `earlier` are of
        earlier trainings and cannot become `best`.
        """
        self.folder = folder
        self._earlier = earlier
        self._tested: deque[int] = deque(maxlen=_LAST_TESTED)  # versions that may be tested again

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return [
            name.removesuffix(_SUFFIX)
            for name in names
            if name.endswith(_SUFFIX) and name[0] != "."
        ]

    def versions(self) -> list[int]:
        """Return the versions that are kept for a while, oldest first."""
        return sorted(int(name) for name in self._names() if name.isdecimal())

    def tags(self) -> list[str]:
        """Return the tags in alphabetical order."""
        return sorted(name for name in self._names() if not name.isdecimal())

    def path(self, name: str | int) -> Path:
        """Return the path of a version or a tag, which need not exist."""
        return self.folder / f"{name}{_SUFFIX}"

    def cards(self) -> Iterator[tuple[str, PolicyCard]]:
        """Yield each policy's version or tag, and its card. Policies that are removed meanwhile, or
        cannot be read, are left out.
        """
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
        """Return the file of a version, of a tag, or of `newest`, the newest version that is whole.

        Raises:
            PolicyError: there is no such policy.
        """
        versions, tags = self.versions(), self.tags()
        for version in reversed(versions) if which == NEWEST else ():
            try:
                read_policy(self.path(version))
                return self.path(version)
            except (PolicyError, OSError) as error:
                if version == versions[0]:
                    raise
                log.warning("%s; taking the version before", error)
        if self.path(which).is_file():
            return self.path(which)
        for name, card in self.cards():
            if which == str(card.version):
                return self.path(name)
        kept = f"{versions[0]} to {versions[-1]}" if versions else "none"
        near = nearest(which, tags)
        more = f"did you mean {near}?" if near else f"tags: {', '.join(tags) or 'none'}"
        raise PolicyError(
            f"there is no policy {which} in {self.folder}; versions: {kept}; {more} (it is on the "
            "trainer's machine: there `tmrl-like policies export` writes a file, which can be "
            "copied)"
        )

    # -- the trainer -------------------------------------------------------------------------------

    def add(self, weights: Weights, card: PolicyCard) -> Path:
        """Write a version, and return its path. Raise OSError if it cannot be written."""
        path = self.path(card.version)
        write_policy(path, weights, card)
        return path

    def add_return(self, version: int, return_: float) -> int:
        """Record the return of a version's test episode; return the version that has become `best`,
        or 0 if none has.

        `best` is the version whose worst test episode is best, among those tested `TESTS` times
        (TD7's rule: Fujimoto et al., "For SALE: State-Action Representation Learning for Deep
        Reinforcement Learning", 2023). Until there is one, it is the first version tested at all.
        Among equal versions, the current `best` stays. That of an earlier training is kept as
        `best-VERSION`.

        Raises:
            PolicyError: the version is not kept any more.
            OSError: the file cannot be written.
        """
        path = self.find(str(version))
        card, weights = read_policy(path)
        if card is None:
            return 0
        write_policy(path, weights, _with_return(card, return_))
        for name, other in self.cards():  # its tags are names of the file before
            is_same = (other.version, other.published_at_s) == (version, card.published_at_s)
            if is_same and self.path(name) != path:
                with contextlib.suppress(OSError):  # on Windows, while another process reads it
                    link_atomically(path, self.path(name))
        if version <= self._earlier:
            return 0
        self._tested.append(version)
        cards = {
            name: card
            for name, card in self.cards()
            if card.episodes and card.version > self._earlier
        }
        # the version's name rather than a tag
        names = {card.version: name for name, card in reversed(cards.items())}
        before = cards[BEST].version if BEST in cards else version
        best = max((before, *sorted(names)), key=lambda one: _worst_if_retested(cards[names[one]]))
        if names[best] != BEST:
            self._set_aside(BEST)
            link_atomically(self.path(names[best]), self.path(BEST))
        return best if BEST not in cards or best != before else 0

    def tag_steps(self, version: int, steps: int) -> None:
        """Tag a version as `step-STEPS`; that of an earlier training is kept as
        `step-STEPS-VERSION`. Raises as `tag`.
        """
        self._set_aside(f"step-{steps}")
        self.tag(str(version), f"step-{steps}")

    def _set_aside(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError, PolicyError):  # not there, or unreadable
            card = read_card(self.path(name))
            if card is not None and card.version <= self._earlier:
                self.tag(name, f"{name}-{card.version}")

    def collect(self, at_most: int) -> None:
        """Remove all versions but the newest `at_most`, one at least, and those tested last.

        Raises:
            OSError: some could not be removed, as on Windows while a process reads them; all others
                are.
        """
        failures = list[OSError]()
        remove_drafts(self.folder)
        for version in self.versions()[: -max(1, at_most)]:
            if version in self._tested:
                continue
            try:
                disk.remove(self.path(version))
            except OSError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    # -- any process -------------------------------------------------------------------------------

    def tag(self, which: str, name: str) -> Path:
        """Keep a policy for good, under a name of its own; a policy that has the name loses it.

        Raises:
            ConfigError: `name` cannot be a tag.
            PolicyError: there is no such policy.
            OSError: the tag cannot be written.
        """
        if not _TAG.fullmatch(name) or name == NEWEST:
            raise ConfigError(
                f"the tag is {name!r}; expected a letter, then letters, digits, '.', '_' and '-'"
            )
        link_atomically(self.find(which), self.path(name))
        disk.sync_folder(self.folder)
        return self.path(name)


def _with_return(card: PolicyCard, return_: float) -> PolicyCard:
    """Return the card with one more test episode, updating mean and deviation (Welford, 1962)."""
    return_ = min(max(return_, -_LARGEST), _LARGEST)
    before, episodes = return_ if card.return_ is None else card.return_, card.episodes + 1
    mean = before + (return_ - before) / episodes
    squares = card.std**2 * max(0, card.episodes - 1) + (return_ - before) * (return_ - mean)
    std = math.sqrt(squares / max(1, card.episodes))
    worst = return_ if card.worst is None else min(card.worst, return_)
    return msgspec.structs.replace(card, return_=mean, std=std, worst=worst, episodes=episodes)


def _worst_if_retested(card: PolicyCard) -> float:
    """Return the worst return, by which versions are compared; -inf before `TESTS` episodes."""
    return -math.inf if card.worst is None or card.episodes < TESTS else card.worst


def split_place(where: str | Path) -> tuple[Path, str]:
    """Split `RUN`, `RUN@TAG` or `RUN@1200`, RUN being a name or a folder, into the folder of the
    policies and the version or tag.

    Raises:
        PolicyError: there is no such run.
    """
    place, _, which = (str(where), "", "") if Path(where).is_dir() else str(where).rpartition("@")
    place, which = (place, which) if place else (which, "")
    folders = [
        folder
        for run in (Path(place), data_folder() / "runs" / place)
        for folder in (run / FOLDER, run)
    ]
    folder = next((folder for folder in folders if next(folder.glob(f"*{_SUFFIX}"), None)), None)
    if folder is None:
        raise PolicyError(
            f"there are no policies at {where}: expected a policy file, a run's folder or its "
            f"name, with @TAG or @VERSION behind it; looked for {folders[0]} and {folders[2]}"
        )
    return folder, which or NEWEST


def find_policy(where: str | Path, own: Path | None = None) -> Path:
    """Return the policy file that `where` names: a file, or one of a run's policies as in
    `split_place`.

    With the folder of a run's `own` policies, a version or a tag alone names one of these.

    Raises:
        PolicyError: there is no such policy.
    """
    if Path(where).is_file():
        return Path(where)
    folder, which = split_place(where) if own is None or "@" in str(where) else (own, str(where))
    return PolicyStore(folder).find(which)
