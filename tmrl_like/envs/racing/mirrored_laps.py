"""Mirror images of driven laps, which give twice as many laps to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tmrl_like.base import tree
from tmrl_like.errors import ConfigError


class MirroredLaps:
    """Sample preprocessor that leaves each transition as it is or mirrors it, at random: a corner
    to the left becomes one to the right.

    Works on whole batches (tensors [B, …]); single transitions stay as they are.
    """

    batched = True

    def __init__(self, seed: int | None = None, inputs: Sequence[Any] | None = None) -> None:
        """Set up the preprocessor.

        Args:
            seed: seed of the random choice; None for a different one each time.
            inputs: the environment's `inputs`, if actions are row numbers of a table; an experiment
                passes them by itself.

        Raises:
            ConfigError: the mirror image of a row is not in the table.
        """
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._mirrored_rows = None if inputs is None else _mirrored_rows(inputs)

    def with_inputs(self, inputs: Sequence[Any] | None) -> MirroredLaps:
        """Return a preprocessor with the environment's `inputs`."""
        return MirroredLaps(self._seed, inputs)

    def __call__(self, *transitions: Any) -> tuple[Any, ...]:
        last_obs, act, rew, obs, terminated, truncated = transitions
        if isinstance(act, np.ndarray | np.generic):
            return transitions
        # the rows of a batch are drawn at random, so each transition is mirrored half of the time
        rows = slice(int(self._random.integers(2)), None, 2)

        def with_images(whole: Any, images: Any) -> Any:
            both = whole.clone()
            both[rows] = images
            return both

        here = last_obs, act, obs
        seen, done, seen_next = tree.map_leaves(lambda part: part[rows], here)
        images = self._mirror(seen), self._other_way(done), self._mirror(seen_next)
        last_obs, act, obs = tree.map_leaves(with_images, here, images)
        return last_obs, act, rew, obs, terminated, truncated

    def _mirror(self, obs: tuple[Any, ...]) -> tuple[Any, ...]:
        instruments, seen, *actions = obs
        mirrored = -instruments
        mirrored[:, 0] = instruments[:, 0]  # the speed ahead
        # rays and columns go from left to right; colours come after them
        across = -2 if seen.shape[-1] == 3 else -1
        return (mirrored, seen.flip(across), *map(self._other_way, actions))

    def _other_way(self, action: Any) -> Any:
        if self._mirrored_rows is not None:
            return action.new_tensor(self._mirrored_rows)[action]
        if not action.is_floating_point():
            raise ConfigError(
                "actions are numbers of a table's rows: give MirroredLaps the environment's "
                "`inputs`"
            )
        mirrored = action.clone()
        mirrored[:, 0] *= -1
        return mirrored


def _mirrored_rows(inputs: Sequence[Any]) -> list[int]:
    """Return the number of each row's mirror image, which steers the other way."""
    rows = [[float(steering), float(pedal)] for steering, pedal in inputs]
    images = [[-steering, pedal] for steering, pedal in rows]
    for i, image in enumerate(images):
        if image not in rows:
            raise ConfigError(f"row {i} of the table of inputs has no mirror image: add {image}")
    return [rows.index(image) for image in images]
