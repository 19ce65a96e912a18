"""`test --rerun`: what episodes consist of, step by step, in a file for the Rerun viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tmrl_like.base import tree
from tmrl_like.errors import ConfigError, MissingExtraError
from tmrl_like.rollouts import Rollout

_CURVES = 64  # a leaf with more numbers is shown as a tensor


class Recording:
    """A file that grows by an episode with each `add`, with the timelines `step` and `time`."""

    def __init__(self, file: str) -> None:
        """Begin the file; what was there is overwritten.

        Raises:
            MissingExtraError: rerun-sdk is not installed.
            ConfigError: it cannot be written there.
        """
        try:
            import rerun
        except ImportError:
            raise MissingExtraError("--rerun needs rerun-sdk: pip install 'tmrl_like[rerun]'") from None
        if Path(file).suffix != ".rrd" or not Path(file).parent.is_dir():
            raise ConfigError(f"--rerun {file}: expected a file name ending in .rrd, in a folder that exists")
        self._rerun = rerun
        self._stream = rerun.RecordingStream("tmrl_like")
        self._stream.save(file)
        self._episodes = 0

    def add(self, rollout: Rollout) -> None:
        """Add an episode with its observations."""
        self._episodes += 1
        root, times_s = f"episode_{self._episodes}", rollout.times_s
        self._send(f"{root}/observation", rollout.observations, np.concatenate(([0.0], times_s)), first=0)
        periods_ms = np.diff(times_s, prepend=0.0) * 1e3
        columns = {
            "action": rollout.actions,
            "reward": rollout.rewards,
            "info": rollout.info,
            "timing/period_ms": periods_ms,
            "timing/late_by_ms": periods_ms - rollout.time_step_s * 1e3 if rollout.time_step_s else {},
            "policy_version": rollout.policy_versions,
            "driver": rollout.sources,
        }
        for name, column in columns.items():
            self._send(f"{root}/{name}", column, times_s, first=1)

    def _send(self, name: str, value: Any, times_s: Any, first: int) -> None:
        """Add a structure of arrays [T, …] under a name; the first row belongs to that step."""
        rerun, steps = self._rerun, range(first, first + len(times_s))
        for path, leaf in tree.walk(value):
            place = "/".join((name, *map(str, path)))
            numbers = leaf.reshape(len(leaf), -1)
            if numbers.shape[1] <= _CURVES and leaf.dtype.kind in "biuf":
                columns = rerun.Scalars.columns(scalars=numbers.astype(np.float64))
                indexes = [rerun.TimeColumn("step", sequence=steps), rerun.TimeColumn("time", duration=times_s)]
                rerun.send_columns(place, indexes, columns, recording=self._stream)
                continue
            for step, time_s, row in zip(steps, times_s, leaf, strict=True):
                self._stream.set_time("step", sequence=step)
                self._stream.set_time("time", duration=time_s)
                is_colour = row.shape[-1:] == (3,)
                picture = row[-1] if row.ndim == 3 + is_colour else row  # the newest of a stack
                is_picture = row.dtype == np.uint8 and picture.ndim == 2 + is_colour
                self._stream.log(place, rerun.Image(picture) if is_picture else rerun.Tensor(row))

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.flush()
        self._stream.disconnect()
