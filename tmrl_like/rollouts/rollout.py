"""A rollout: one episode as aligned columns."""

from __future__ import annotations

import dataclasses
import io
import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tmrl_like.base import tree
from tmrl_like.base.files import write_atomically
from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError

Step: TypeAlias = tuple[Any, Any, dict[str, Any], int, int, float, Any]
"""(act, rew, info, policy version, source, time in seconds of some clock, observation or None): as
in `Sample`, an action and what followed it.
"""

_COLUMNS = ("actions", "rewards", "info", "policy_versions", "sources", "times_s", "observations")
_PIECE = 64  # values that become an array in one call, during which no other thread runs


@dataclass(frozen=True, eq=False, kw_only=True)
class Rollout:
    """One episode of T steps as aligned columns: row t of each column belongs to the t-th action
    and what followed it.

    Attributes:
        actions: structure of arrays `[T, *action shape]`, as given to the environment.
        rewards: float64 [T].
        info: arrays [T, …] by name, for each item of `info` that is a number or an array of one
            shape in all steps: items of the environment (`progress`, `distance`, `position`, …) and
            of the actor (`greedy`, `values`, …).
        policy_versions: int64 [T], versions of the policies that acted; 0 for one that was never
            published.
        sources: int64 [T], what chose the actions (`ActionSource`).
        times_s: float64 [T], seconds from the reset's observation to the one that followed the
            action.
        observations: structure of arrays [T + 1, …], as the environment gave them: the reset's,
            then the one after each action. None unless observations were asked for.
        worker: name of the worker that ran the episode.
        test: whether it was a test episode.
        terminated: whether it ended in a terminal state.
        truncated: whether it was cut.
        fault: description of the fault that ended the episode; empty if there was none.
        time_step_s: nominal duration of a time-step; 0 if the environment does not run in real time
            or the duration is not known.
        experiment: the experiment as YAML, for a rollout that was kept as a run's best; otherwise
            empty.
    """

    actions: Any
    rewards: NDArray[np.float64]
    info: dict[str, NDArray[Any]]
    policy_versions: NDArray[np.int64]
    sources: NDArray[np.int64]
    times_s: NDArray[np.float64]
    observations: Any = None
    worker: str = ""
    test: bool = False
    terminated: bool = False
    truncated: bool = False
    fault: str = ""
    time_step_s: float = 0.0
    experiment: str = field(default="", repr=False)

    def __len__(self) -> int:
        """Return the number of steps, T."""
        return len(self.rewards)

    @property
    def return_(self) -> float:
        """The sum of the rewards."""
        return float(self.rewards.sum())

    @property
    def clock(self) -> NDArray[np.float64]:
        """The time of each step, [T], by which rollouts are compared: in seconds, or in steps if
        the environment does not run in real time.
        """
        return self.times_s if self.time_step_s else np.arange(1.0, len(self) + 1)

    @property
    def progress(self) -> float | None:
        """The largest `info["progress"]`, a share of the way, where 1 is its end; None if there is
        no such item.
        """
        return float(self.info["progress"].max()) if "progress" in self.info else None

    @property
    def took(self) -> float | None:
        """The time at which `info["progress"]` reached 1, by the `clock`; None if it never did."""
        if self.progress is None or self.progress < 1:
            return None
        return float(self.clock[np.argmax(self.info["progress"] >= 1)])

    @property
    def rank(self) -> tuple[float, ...]:
        """A tuple that is larger for the better of two rollouts.

        The better one came further, or reached the end sooner. If `info` has no `progress`, it is
        the one with the higher return.
        """
        if self.progress is None:
            return 0.0, self.return_
        return 1.0, min(self.progress, 1.0), 0.0 if self.took is None else -self.took

    def __str__(self) -> str:
        if self.took is not None:
            return f"{self.took:.2f} s" if self.time_step_s else f"{self.took:.0f} steps"
        if self.progress is not None:
            return f"{self.progress:.1%} of the way"
        return f"return {self.return_:.5g}"

    def save(self, path: str | Path) -> None:
        """Write the rollout to an .npz file atomically: after a kill, the file is either the old
        one or the new one, complete.

        It holds an array for each column (`actions`, `info['progress']`, …), and the rest as JSON
        in `card`.

        Raises:
            OSError: the file cannot be written.
        """
        card = {
            item.name: getattr(self, item.name)
            for item in dataclasses.fields(self)
            if item.name not in _COLUMNS
        }
        columns = {
            name: getattr(self, name) for name in _COLUMNS if getattr(self, name) is not None
        }
        card["columns"] = tree.map_leaves(lambda _: None, columns)
        content = io.BytesIO()
        np.savez(
            content,
            card=json.dumps(card),
            **{_name(path): array for path, array in tree.walk(columns)},
        )
        write_atomically(Path(path), content.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Rollout:
        """Read what `save` wrote; tuples of arrays come back as lists, and names that are numbers
        as strings. Raise ConfigError if that fails.
        """
        try:
            with np.load(  # noqa: TID251
                io.BytesIO(Path(path).read_bytes()), allow_pickle=False
            ) as file:
                card = json.loads(str(file["card"]))
                outline = card.pop("columns")
                arrays = (file[name] for name in file.files if name != "card")
                return cls(**card, **tree.fill(outline, arrays))
        except Exception as error:  # of numpy and zipfile, whatever the file holds
            raise ConfigError(f"{path} is no rollout that can be read: {one_line(error)}") from None


def _name(path: tree.Path) -> str:
    return f"{path[0]}{tree.name_of(path[1:])}"


def rollout_of(steps: deque[Step], **more: Any) -> Rollout:
    """Put the steps of an episode into columns; the first one is its reset. Empties `steps`.

    Args:
        steps: two or more.
        more: the fields of `Rollout` that are not columns.

    Raises:
        ValueError: the actions or observations are not arrays of one shape.
    """
    reset, *taken = steps
    steps.clear()
    began_s, first_obs = reset[5:]
    parts: list[list[Any]] = [[step[place] for step in taken] for place in range(len(reset))]
    acts, rewards, infos, versions, sources, times, observations = parts
    info = {name: _number_column([info.get(name) for info in infos]) for name in infos[0]}
    return Rollout(
        actions=_columns(acts),
        rewards=_columns(rewards).astype(np.float64),
        info={name: column for name, column in info.items() if column is not None},
        policy_versions=_columns(versions).astype(np.int64),
        sources=_columns(sources).astype(np.int64),
        times_s=_columns(times) - began_s,
        observations=None if first_obs is None else _columns([first_obs, *observations]),
        **more,
    )


def _columns(values: list[Any]) -> Any:
    """Return values of one structure as that structure, with an array [T, ...] for each leaf; raise
    ValueError if its values have no common shape.
    """
    starts = range(0, len(values), _PIECE)  # other threads can run between two pieces
    pieces = [tree.map_leaves(_array, *values[start : start + _PIECE]) for start in starts]
    return tree.map_leaves(lambda *arrays: np.concatenate(arrays), *pieces)


def _array(*values: Any) -> NDArray[Any]:
    array = np.array(values)
    if array.dtype == object:
        raise ValueError(f"no array of one form: {values[0]!r:.80}")
    return array


def _number_column(values: list[Any]) -> NDArray[Any] | None:
    """Return an item of `info` as a column, or None if it is not numbers of one shape."""
    if not isinstance(values[0], np.ndarray | np.generic | int | float):
        return None
    try:
        column: NDArray[Any] = _columns(values)
    except ValueError:
        return None
    return column if column.dtype.kind in "biuf" else None
