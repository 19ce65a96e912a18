"""`tmrl-like record-reward`: a demonstration of the way around a track, for a reward from it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.stopping import Stopper
from tmrl_like.cli.worker import prepare
from tmrl_like.envs.trajectory import resample, save_trajectory
from tmrl_like.errors import ConfigError


def main(arguments: Arguments) -> int:
    """Let the experiment's environment be driven once, and write the way it took."""
    Stopper(arguments.supervised)
    experiment = prepare(arguments, "record", ("env",))
    env_cls = getattr(experiment.env, "func", experiment.env)
    demonstrate = getattr(env_cls, "demonstrate", None)
    if demonstrate is None:
        raise ConfigError(
            f"{arguments.experiment}: {env_cls.__name__} cannot record a demonstration: it has no static "
            "method demonstrate(driver, **init_args) that returns where it drove, [T, 2] or [T, 3]"
        )
    file = Path(arguments.output)
    with contextlib.suppress(OSError):  # looked at before somebody drives in vain
        file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise ConfigError(f"--output {file}: expected the name of a file, in a folder that can be written to")
    print(f"{env_cls.__name__}: once around the track, in real time, driven by {arguments.driver} …", flush=True)
    positions = demonstrate(arguments.driver, **getattr(experiment.env, "keywords", {}))
    points = resample(positions, arguments.spacing)
    save_trajectory(arguments.output, points)
    print(f"{arguments.output}: {len(points)} points from {len(positions)} positions")
    return 0
