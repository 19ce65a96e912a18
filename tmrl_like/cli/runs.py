"""`tmrl-like runs`: what has been trained on this machine."""

from __future__ import annotations

from pathlib import Path

from tmrl_like.base.folders import data_folder
from tmrl_like.base.text import nearest
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.logs import set_up_logging
from tmrl_like.cli.tables import print_table
from tmrl_like.config.document import is_experiment_file
from tmrl_like.config.loading import Overrides, load_settings
from tmrl_like.config.paths import RunPaths
from tmrl_like.config.run_lock import is_in_use
from tmrl_like.errors import ConfigError
from tmrl_like.metrics.curves import recent
from tmrl_like.metrics.reading import read_records
from tmrl_like.metrics.starts import read_starts
from tmrl_like.policies.policy_file import read_card
from tmrl_like.policies.policy_store import BEST, PolicyStore

_COLUMNS = ["run", "task", "started", "minutes", "samples", "return", "best", "state"]
_READ_BYTES = 1 << 20  # of a file of metrics, its end


def main(arguments: Arguments) -> int:
    """List all runs, the newest last."""
    set_up_logging("runs", arguments.log_level)
    folder = data_folder() / "runs"
    found = [RunPaths(place.name, data_folder()) for place in folder.glob("*/") if any(place.glob("*.json*"))]
    rows = sorted((_row(paths) for paths in found), key=lambda row: row[_COLUMNS.index("started")])
    if rows:
        print_table(str(folder), _COLUMNS, rows)
    else:
        print(f"no runs in {folder} yet; `tmrl-like run EXPERIMENT` makes one")
    return 0


def _row(paths: RunPaths) -> list[str]:
    starts = read_starts(paths.folder)
    newest: dict[str, float] = {}
    returns: dict[bool, list[float]] = {True: [], False: []}
    for record in read_records(paths.metrics, _READ_BYTES):
        newest |= {name: record[name] for name in ("time_s", "env_steps_total") if record.get(name) is not None}
        if record.get("kind") == "episode" and record.get("return") is not None:
            returns[record["test"]].append(record["return"])
    shown = returns[True] or returns[False]
    shown = shown[-recent(len(shown)) :]
    best = PolicyStore(paths.policies).path(BEST)
    card = read_card(best) if best.is_file() else None
    ended = starts[-1].ended or "killed" if starts else "-"
    return [
        paths.run_name,
        (starts[-1].task if starts else "") or "-",
        starts[-1].time[:16].replace("T", " ") if starts else "-",
        f"{newest.get('time_s', 0.0) / 60:.1f}",
        f"{newest.get('env_steps_total', 0):,.0f}",
        f"{sum(shown) / len(shown):.3g}" if shown else "-",
        "-" if card is None or card.return_ is None else f"{card.return_:.3g}",
        "running" if is_in_use(paths) else ended,
    ]


def folder_of(place: str, overrides: Overrides = ()) -> Path:
    """The folder of the run that a run's name, its folder or the YAML file of its experiment stands for.

    `overrides` are of the file, where it is one: another `run_name`.

    Raises:
        ConfigError: there is no run of that name.
    """
    if is_experiment_file(place):
        return load_settings(place, overrides).paths.folder
    runs = data_folder() / "runs"
    folder = Path(place) if Path(place).is_dir() else runs / place
    if not folder.is_dir():
        near = nearest(place, [run.name for run in runs.glob("*/")])
        hint = f"did you mean {near}?" if near else "`tmrl-like runs` lists all"
        raise ConfigError(f"there is no run {place} in {runs}; {hint}")
    return folder
