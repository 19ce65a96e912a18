"""Drivers made from files: a policy file, or a network as ONNX, trained by any library.

Each is a `types.Driver`: it takes over from a policy, or is the base controller of a `ResidualEnv`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tmrl_like.base import tree
from tmrl_like.errors import ConfigError, MissingExtraError
from tmrl_like.policies.export import input_of
from tmrl_like.policies.load_policy import load_policy
from tmrl_like.types import Action, Observation, ObsPreprocessor
from tmrl_like.wire.spaces import Space


class PolicyDriver:
    """Drives with the best actions of a policy file."""

    is_program = True

    def __init__(
        self,
        action_space: Space,
        default_action: Action,
        policy: str,
        allow: Sequence[str] = (),
        observation_space: Space | None = None,
    ) -> None:
        """Load the policy.

        Args:
            action_space: action space of the environment.
            default_action: default action of the environment; not used.
            policy: as `load_policy` takes it: a file, a run, RUN@TAG.
            allow: packages of yours whose code the file may name.
            observation_space: observation space of the environment, which the policy's must equal;
                None skips this check.

        Raises:
            PolicyError: there is no such policy, or its file cannot be used.
            ConfigError: the policy is for other observations or actions.
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
        """Return the policy's best action."""
        return self._policy.act(obs)

    def reset(self) -> None:
        """Begin an episode: forget recurrent state."""
        self._policy.reset()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class OnnxDriver:
    """Drives with a network in an ONNX file, which onnxruntime computes on the CPU.

    A network with as many inputs as an observation has parts gets one part per input, [1, …]: by
    name if `write_onnx` has named the inputs, otherwise in order. A network with a single input
    gets the numbers of all parts side by side, [1, R]. The order is that of the observation space,
    or of what an `obs_preprocessor` returns. The first output is the action, with as many numbers
    as the action space has.
    """

    is_program = True

    def __init__(
        self,
        action_space: Space,
        default_action: Action,
        file: str,
        obs_preprocessor: ObsPreprocessor | None = None,
        observation_space: Space | None = None,
    ) -> None:
        """Load the file.

        Args:
            action_space: action space of the environment.
            default_action: default action of the environment; not used.
            file: path of the file.
            obs_preprocessor: applied to observations first, or None.
            observation_space: observation space of the environment; None: the order of the parts is
                that in which they are given.

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
        self._shape, self._see = action_space.shape or (), obs_preprocessor
        self._ordered = None if obs_preprocessor else observation_space
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # more threads would wait for cores that train
        try:
            self._session = onnxruntime.InferenceSession(
                str(Path(file)), options, ["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has error classes of its own
            raise ConfigError(f"the ONNX file {file} cannot be loaded: {error}") from None
        self._inputs = self._session.get_inputs()

    def __call__(self, obs: Observation) -> Action:
        """Return the network's action. Raise ConfigError if it has neither one input nor as many as
        the observation has parts, or if its output has another size than an action.
        """
        seen = obs if self._see is None else self._see(obs)
        walked = tree.walk(self._ordered or seen, seen)
        named = {input_of(path): np.asarray(part)[None] for path, _, part in walked}
        names, parts = [one.name for one in self._inputs], list(named.values())
        if len(names) == 1 < len(parts):
            parts = [np.concatenate([part.ravel() for part in parts]).astype(np.float32)[None]]
        if len(names) != len(parts):
            raise ConfigError(
                f"the ONNX file has the inputs {', '.join(names)}; the observation has "
                f"{len(parts)} parts"
            )
        given = named if named.keys() == set(names) else dict(zip(names, parts, strict=True))
        action = np.asarray(self._session.run(None, given)[0])
        if action.size != math.prod(self._shape):
            raise ConfigError(
                f"the ONNX file gives {action.size} numbers; an action has {math.prod(self._shape)}"
            )
        return action.reshape(self._shape)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
