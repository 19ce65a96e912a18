"""Resolves the first argument of a command: an experiment, a run, or a policy of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tmrl_like.base.folders import data_folder
from tmrl_like.base.text import nearest
from tmrl_like.config.document import Document, find_experiment, shipped
from tmrl_like.config.loading import Overrides, open_experiment, open_kept, settings_of
from tmrl_like.config.paths import RunPaths
from tmrl_like.config.settings import NAME_OF_RUN
from tmrl_like.errors import ConfigError

_IN_A_RUN = ("run.json", "metrics.jsonl", "policies")


@dataclass(frozen=True)
class Place:
    """What the first argument of a command refers to.

    Attributes:
        version: a policy's version, its tag, or `newest`; empty if none was given.
        file: the experiment's file; None if the argument names a run.
        run: the run's folder; None if the argument names an experiment.
    """

    version: str = ""
    file: Path | None = None
    run: Path | None = None

    def open(self, overrides: Overrides = ()) -> Document:
        """Read the experiment, from its file or as the run's newest start has saved it; `overrides`
        replace its values.

        Raises:
            ConfigError: it cannot be read, or the run has saved none; one line.
        """
        if self.file is not None:
            return open_experiment(self.file, overrides)
        from tmrl_like.metrics.starts import read_starts

        assert self.run is not None
        start = next((start for start in reversed(read_starts(self.run)) if start.experiment), None)
        if start is None:
            raise ConfigError(
                f"{self.run} has kept no experiment (run.json): it was trained by a script, or "
                "elsewhere; name a YAML file, and its policy with --policy "
                f"{self.run.name}@{self.version or 'newest'}"
            )
        name = RunPaths.of(self.run).run_name  # the folder may have been renamed to any text
        named = [(("run_name",), name)] if NAME_OF_RUN.fullmatch(name) else []
        return open_kept(start.experiment, start.experiment_file, (*named, *overrides))

    def folder(self) -> Path:
        """Return the run's folder; for an experiment, that of its `run_name`."""
        if self.run is not None:
            return self.run
        return settings_of(self.open()).paths.folder


def find_place(typed: str) -> Place:
    """Find what a text refers to: a file; else NAME.yaml in the working folder, an experiment that
    ships, or a run.

    With a version after an @, a run takes precedence over an experiment. If there is no such run,
    the experiment's run is meant.

    Raises:
        ConfigError: there is nothing of that name, and one line suggests the nearest one; or it
            cannot be read.
    """
    name, at, version = typed.rpartition("@")
    runs = {folder.name: folder for folder in (data_folder() / "runs").glob("*/")}
    try:
        if Path(typed).exists() or not at:
            name, version = typed, ""
        is_run = any((Path(name) / part).exists() for part in _IN_A_RUN)
        run = Path(name).absolute() if is_run else runs.get(name)
        file = find_experiment(name)
        if run is not None and (version or file is None):
            return Place(version, run=run)
    except OSError as error:
        raise ConfigError(f"{typed}: cannot be read: {error.strerror}") from None
    if file is not None:
        return Place(version, file=file)
    written = Path(name, f"{Path(name).name}.yaml")  # by `init`, in a folder of that name
    known = [*shipped(), *(own.stem for own in Path().glob("*.yaml")), *runs]
    near = written if written.is_file() else nearest(name, known)
    hint = (
        f"did you mean {near}?"
        if near
        else "`tmrl-like --help` lists experiments, `tmrl-like runs` runs"
    )
    raise ConfigError(f"there is no experiment and no run {name}; {hint}")
