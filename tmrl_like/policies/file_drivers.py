"""Drivers that are files: a policy of ours, or a network as ONNX, whatever trained it.

Each is a `types.Driver`: it takes over from a policy, or is the base controller of a `ResidualEnv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_like.base import tree
from tmrl_like.errors import ConfigError, MissingExtraError
from tmrl_like.policies.load_policy import load_policy
from tmrl_like.types import Action, Observation, ObsPreprocessor
from tmrl_like.wire.spaces import Space


class PolicyDriver:
    """A policy file drives, with its best actions."""

    is_program = True

    def __init__(
        self,
        action_space: Space,
        default_action: Action,
        policy: str,
        allow: Sequence[str] = (),
        observation_space: Space | None = None,
    ) -> None:
        """Load it.

        Args:
            action_space: of the environment.
            default_action: of the environment; not used.
            policy: what `load_policy` takes: a file, a run, RUN@TAG.
            allow: packages of yours that the file may name code of.
            observation_space: of the environment, which the policy's must equal; None: nobody
                looks.

        Raises:
            PolicyError: there is none, or it cannot be what its file says.
            ConfigError: it is for other observations or actions.
        """
        self._policy = load_policy(policy, allow=allow)
        pairs = (
            (self._policy.action_space, action_space),
            (self._policy.observation_space, observation_space),
        )
        for own, wanted in pairs:
            if wanted is not None and own != wanted:
                raise ConfigError(f"the policy {policy} is for {own}; the environment has {wanted}")

    def __call__(self, obs: Observation) -> Action:
        """Its best action."""
        return self._policy.act(obs)

    def reset(self) -> None:
        """An episode begins."""
        self._policy.reset()

    def close(self) -> None:
        """Nothing is held."""


class OnnxDriver:
    """A network in an ONNX file drives, by the runtime's processor.

    A network with as many inputs as an observation has parts is given each of them, [1, …], in
    their order; one with a single input all of their numbers side by side, [1, R]. Its first output
    is the action, with as many numbers as that has.
    """

    is_program = True

    def __init__(
        self,
        action_space: Space,
        default_action: Action,
        file: str,
        obs_preprocessor: ObsPreprocessor | None = None,
    ) -> None:
        """Load the file.

        Args:
            action_space: of the environment.
            default_action: of the environment; not used.
            file: its path.
            obs_preprocessor: what observations go through before; None: nothing.

        Raises:
            MissingExtraError: onnxruntime is not installed.
            ConfigError: the runtime cannot load the file.
        """
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError(
                "driving with an ONNX file needs: pip install 'tmrl_like[onnx]'"
            ) from None
        self._shape, self._see = action_space.shape, obs_preprocessor
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # its own threads would wait for the processors that train
        try:
            self._session = onnxruntime.InferenceSession(
                str(Path(file)), options, ["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime's classes of errors are its own
            raise ConfigError(f"the ONNX file {file} cannot be loaded: {error}") from None
        self._inputs = self._session.get_inputs()

    def __call__(self, obs: Observation) -> Action:
        """What it computes; ConfigError: it has another number of inputs than the observation has
        parts.
        """
        parts: list[Any] = [
            np.asarray(part)[None]
            for part in tree.leaves(obs if self._see is None else self._see(obs))
        ]
        if len(self._inputs) == 1 < len(parts):
            parts = [np.concatenate([part.ravel() for part in parts]).astype(np.float32)[None]]
        if len(self._inputs) != len(parts):
            names = ", ".join(one.name for one in self._inputs)
            raise ConfigError(
                f"the ONNX file has the inputs {names}; the observation has {len(parts)} parts"
            )
        given = {one.name: part for one, part in zip(self._inputs, parts, strict=True)}
        return self._session.run(None, given)[0].reshape(self._shape)

    def close(self) -> None:
        """Nothing is held."""
