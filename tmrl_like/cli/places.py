"""What the first argument of a command names: an experiment, a run, or a policy of a run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tmrl_like.base.folders import data_folder
from tmrl_like.base.text import nearest
from tmrl_like.config.document import Document, find_experiment, shipped
from tmrl_like.config.loading import Overrides, as_yaml, open_experiment, open_kept, settings_of
from tmrl_like.errors import ConfigError, PolicyError

_IN_A_RUN = ("run.json", "metrics.jsonl", "policies")
TO_DRIVE = ("env", "actor", "obs_preprocessor", "action_chain")


@dataclass(frozen=True)
class Place:
    """What was found.

    Attributes:
        typed: what was typed.
        version: of a policy: a version, a tag or `newest`; empty: none was named.
        file: the experiment's; None: it is a run that is named.
        run: the run's folder; None: it is an experiment that is named.
    """

    typed: str
    version: str = ""
    file: Path | None = None
    run: Path | None = None

    def open(self, overrides: Overrides = (), only_to_drive: bool = False) -> Document:
        """The experiment: from its file, or as the run's newest start has kept it.

        Args:
            overrides: keys and values (as text) that replace the experiment's.
            only_to_drive: the environment and the actor are enough, which is all that is known of a script's run.

        Raises:
            ConfigError: it cannot be read, or nobody knows the run's environment; one line.
        """
        if self.file is not None:
            return open_experiment(self.file, overrides)
        from tmrl_like.metrics.starts import read_starts

        assert self.run is not None
        start = next((start for start in reversed(read_starts(self.run)) if start.experiment or start.env), None)
        if start is None:
            raise ConfigError(
                f"{self.run} says of no environment to drive it in (run.json): expected a run that was trained here; "
                "`tmrl-like runs` lists all, and a YAML file is an experiment, too"
            )
        if start.experiment:
            return open_kept(start.experiment, start.experiment_file, overrides)
        if not only_to_drive:
            raise ConfigError(f"{self.run} was trained by a script, not from a file: only `tmrl-like test` can read it")
        from tmrl_like.policies.policy_file import read_card
        from tmrl_like.policies.policy_store import NEWEST, PolicyStore

        try:
            policy = PolicyStore(self.run / "policies").find(self.version or NEWEST)
        except PolicyError as error:
            raise ConfigError(str(error)) from None
        card = read_card(policy)
        parts = {"env": start.env, "actor": card.actor if card else "its file holds weights alone"}
        if card and card.obs_preprocessor:
            parts["obs_preprocessor"] = card.obs_preprocessor
        script = next((word for word in shlex.split(start.command) if word.endswith(".py")), "the script")
        for name, part in parts.items():
            why = part if isinstance(part, str) else ""
            if "__main__." in str(part):
                why = f"it is in {script} itself: put it into a module of its own, and train again"
            if why:
                raise ConfigError(f"{policy} was trained by a script, and its {name} cannot be made again: {why}")
        return open_kept(as_yaml(msgspec.to_builtins(parts)), str(Path(start.folder, script)), overrides, TO_DRIVE)

    def folder(self) -> Path:
        """The run's folder; of an experiment that of its `run_name`."""
        if self.run is not None:
            return self.run
        return settings_of(self.open()).paths.folder


def find_place(typed: str) -> Place:
    """Find what a text means: a file; else NAME.yaml of the working folder, an experiment that ships, or a run.

    With a version behind an @, a run comes before an experiment, whose run is meant otherwise.

    Raises:
        ConfigError: there is nothing of that name; one line with the nearest one.
    """
    name, at, version = typed.rpartition("@")
    if Path(typed).exists() or not at:
        name, version = typed, ""
    runs = data_folder() / "runs"
    is_run = any((Path(name) / part).exists() for part in _IN_A_RUN)
    run = Path(name) if is_run else runs / name
    file = find_experiment(name)
    if name and run.is_dir() and (version or file is None):
        return Place(typed, version, run=run)
    if file is not None:
        return Place(typed, version, file=file)
    known = [*shipped(), *(own.stem for own in Path().glob("*.yaml")), *(other.name for other in runs.glob("*/"))]
    near = nearest(name, known)
    hint = f"did you mean {near}?" if near else "`tmrl-like --help` lists experiments, `tmrl-like runs` runs"
    raise ConfigError(f"there is no experiment and no run {name}; {hint}")
