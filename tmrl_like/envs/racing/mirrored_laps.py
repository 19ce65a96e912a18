"""Mirror images of driven laps, which give twice as many laps to learn from."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tmrl_like.base import tree
from tmrl_like.envs.action_table import ActionTable, Inputs
from tmrl_like.envs.racing.racing_env import RacingInterface
from tmrl_like.errors import ConfigError, expect


class MirroredLaps:
    """Sample preprocessor that leaves each transition as it is or mirrors it, at random: a corner
    to the left becomes one to the right.

    Works on whole batches (tensors [B, …]) and on single transitions (arrays).
    """

    batched = True

    def __init__(self, seed: int | None = None, inputs: Inputs | None = None) -> None:
        """Set up the preprocessor.

        Args:
            seed: seed of the random choice; None for a different one each time.
            inputs: the environment's `inputs`, if actions are row numbers of a table.

        Raises:
            ConfigError: the table does not fit, or the mirror image of a row is not in it.
        """
        self._seed, self._inputs = seed, inputs
        self._random = np.random.default_rng(seed)
        self._mirrored: NDArray[np.int64] | None = None  # number of each row's mirror image
        if inputs is not None:
            table = ActionTable(inputs, RacingInterface.input_tables)
            table.fit(spaces.Box(-1.0, 1.0, (2,), np.float32))
            images = np.array(table.inputs) * np.array((-1.0, 1.0), np.float32)
            for i, image in enumerate(images):
                if not any(np.array_equal(image, row) for row in table.inputs):
                    raise ConfigError(
                        f"row {i} of the table of inputs has no mirror image: add {image.tolist()}"
                    )
            self._mirrored = np.array([table.nearest(image) for image in images])

    def with_inputs(self, inputs: Inputs | None) -> MirroredLaps:
        """Return a preprocessor with the environment's `inputs`; raise ConfigError if this one was
        given others.
        """
        is_same = self._inputs is None or self._inputs == inputs
        expect(
            is_same,
            "sample_preprocessor.inputs",
            self._inputs,
            f"the environment's, {inputs!r:.40}; leave it out",
        )
        return MirroredLaps(self._seed, inputs)

    def __call__(
        self,
        last_obs: tuple[Any, ...],
        act: Any,
        rew: Any,
        obs: tuple[Any, ...],
        terminated: Any,
        truncated: Any,
    ) -> tuple[Any, ...]:
        here = last_obs, act, obs
        first = int(self._random.integers(2))
        if not isinstance(act, np.ndarray | np.generic):
            last_obs, act, obs = self._every_other(here, slice(first, None, 2))
        elif first:
            last_obs, act, obs = self._image(here)
        return last_obs, act, rew, obs, terminated, truncated

    def _every_other(self, here: Any, rows: slice) -> Any:
        """Return the batch with these rows mirrored. The rows of a batch are drawn at random, so
        each transition is mirrored half of the time.
        """

        def with_images(whole: Any, images: Any) -> Any:
            both = whole.clone()
            both[rows] = images
            return both

        images = self._image(tree.map_leaves(lambda part: part[rows], here))
        return tree.map_leaves(with_images, here, images)

    def _image(self, here: Any) -> Any:
        """Return the mirror images of an observation, an action and the next observation."""
        last_obs, act, obs = here
        return self._mirror(last_obs), self._other_way(act), self._mirror(obs)

    def _mirror(self, obs: tuple[Any, ...]) -> tuple[Any, ...]:
        instruments, seen, *actions = obs
        mirrored = -instruments
        mirrored[..., 0] = instruments[..., 0]  # the speed ahead
        # rays and columns go from left to right; colours come after them
        across = -2 if seen.shape[-1] == 3 else -1
        flipped = (
            np.ascontiguousarray(np.flip(seen, across))
            if isinstance(seen, np.ndarray)
            else seen.flip(across)
        )
        return (mirrored, flipped, *map(self._other_way, actions))

    def _other_way(self, action: Any) -> Any:
        if self._mirrored is not None:
            is_array = isinstance(action, np.ndarray | np.generic)
            return (self._mirrored if is_array else action.new_tensor(self._mirrored))[action]
        if "int" in str(action.dtype):
            raise ConfigError(
                "actions are numbers of a table's rows: give MirroredLaps the environment's "
                "`inputs`"
            )
        mirrored = action * 1
        mirrored[..., 0] *= -1
        return mirrored
