"""`tmrl-like plot`: returns of runs as a picture, runs of one experiment that differ in their seeds as a band."""

from __future__ import annotations

from pathlib import Path

import yaml

from tmrl_like.base.text import one_line
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.logs import set_up_logging
from tmrl_like.cli.runs import folder_of
from tmrl_like.errors import ConfigError
from tmrl_like.metrics.curves import curve_of, plot_returns
from tmrl_like.metrics.starts import read_starts

_OWN = ("run_name", "seed", "server")  # what runs of one experiment may differ in


def main(arguments: Arguments) -> int:
    """Draw the runs."""
    set_up_logging("plot", arguments.log_level)
    groups: dict[str, list[Path]] = {}
    for place in arguments.places:
        folder = folder_of(place)
        if not len(curve_of(folder).returns):
            raise ConfigError(
                f"no episode of {place} has ended: expected a run with metrics in {folder}; `tmrl-like runs` lists all"
            )
        experiment = next((start.experiment for start in reversed(read_starts(folder)) if start.experiment), "")
        shared = {key: value for key, value in (yaml.safe_load(experiment) or {}).items() if key not in _OWN}
        groups.setdefault(yaml.safe_dump(shared) if shared else str(folder), []).append(folder)
    runs = {folders[0].name if len(folders) == 1 else f"{folders[0].name}, …": folders for folders in groups.values()}
    picture = Path(arguments.out)
    try:
        if not plot_returns(picture, runs):
            return ConfigError.exit_code
    except (OSError, ValueError) as error:
        raise ConfigError(f"--out {picture}: {one_line(error)}") from None
    print(f"picture: {picture}")
    return 0
