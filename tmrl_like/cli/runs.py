"""`tmrl-like runs`: the runs on this machine, as a table or a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tmrl_like.base.folders import data_folder
from tmrl_like.base.text import one_line
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.tables import print_table
from tmrl_like.config.paths import RunPaths
from tmrl_like.config.run_lock import is_in_use
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.metrics.curves import curve_of, plot_returns, recent
from tmrl_like.metrics.reading import read_records, return_of
from tmrl_like.metrics.starts import read_starts
from tmrl_like.policies.policy_file import read_card
from tmrl_like.policies.policy_store import BEST, PolicyStore

_COLUMNS = ["run", "task", "started", "minutes", "samples", "return", "best", "state"]
_READ_BYTES = 1 << 20  # how much is read of a metrics file, from its end


def main(arguments: Arguments) -> int:
    """List runs, the newest last, or plot them."""
    runs = data_folder() / "runs"
    found = [arguments.find(typed).folder() for typed in arguments.places]
    if arguments.plot or arguments.out:
        return _plot(found, Path(arguments.out or "returns.png"))
    found = found or [folder for folder in runs.glob("*/") if any(folder.glob("*.json*"))]
    shown = {paths.folder: paths for paths in map(RunPaths.of, found)}  # once, despite links
    rows = sorted(
        map(_row, shown.values()),
        key=lambda row: row[_COLUMNS.index("started")],
    )
    if rows:
        print_table(str(runs), _COLUMNS, rows)
    else:
        print(f"no runs in {runs} yet; `tmrl-like run EXPERIMENT` makes one")
    return 0


def _row(paths: RunPaths) -> list[str]:
    starts = read_starts(paths.folder)
    time_s = samples = 0.0
    returns: dict[bool, list[float]] = {True: [], False: []}
    for record in read_records(paths.metrics, _READ_BYTES):
        time_s = record.get("time_s") or time_s
        samples = record.get("env_steps_total") or samples
        if (return_ := return_of(record)) is not None:
            returns[record["test"]].append(return_)
    shown = returns[True] or returns[False]
    shown = shown[-recent(len(shown)) :]
    ended = starts[-1].ended or "killed" if starts else "-"
    return [
        paths.run_name,
        (starts[-1].task if starts else "") or "-",
        starts[-1].time[:16].replace("T", " ") if starts else "-",
        f"{time_s / 60:.1f}",
        f"{samples:,.0f}",
        f"{sum(shown) / len(shown):.3g}" if shown else "-",
        _best_return(paths),
        "running" if is_in_use(paths) else ended,
    ]


def _best_return(paths: RunPaths) -> str:
    best = PolicyStore(paths.policies).path(BEST)
    try:
        card = read_card(best) if best.is_file() else None
    except (PolicyError, OSError):
        return "unreadable"
    return "-" if card is None or card.return_ is None else f"{card.return_:.3g}"


def _plot(folders: Sequence[Path], picture: Path) -> int:
    """Plot the returns of runs."""
    if not folders:
        raise ConfigError("--plot wants runs to draw: tmrl-like runs RUN … --plot")
    for folder in folders:
        if not len(curve_of(folder).returns):
            raise ConfigError(
                f"no episode of {folder.name} has ended: expected a run with metrics in {folder}; "
                "`tmrl-like runs` lists all"
            )
    try:
        if not plot_returns(picture, folders):
            return ConfigError.exit_code
    except (OSError, ValueError) as error:
        raise ConfigError(f"--out {picture}: {one_line(error)}") from None
    print(f"picture: {picture}")
    return 0
