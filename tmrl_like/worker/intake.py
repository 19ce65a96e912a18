"""New weights, from memory that the link fills to the control loop, without the loop ever waiting for them.

An actor in numpy acts on the parameters where they lie: there is an instance for each slot, and to take a policy is to
change the instance. Those of an actor in torch are loaded and probed first, in the thread that the link wakes: one
instance acts, another one is loaded. A third one is made when a policy arrives while another one waits to be taken, so
that a policy that turns out to be unfit never costs one that was fit.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tmrl_like.errors import PolicyError
from tmrl_like.policies.policy_file import read_policy
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.policies.weight_file import Actor, Manifest
from tmrl_like.types import Observation
from tmrl_like.worker.policy_gate import Verdicts
from tmrl_like.worker.slots import PolicyInSlot, PolicySlots

_LOOK_S = 0.005


class DrivingActor(Actor, Protocol):
    """One that may be an actor in numpy, which has a `network` and its `spec`."""

    extras: Mapping[str, Any]
    network: Any
    spec: Any

    def carry_over(self, previous: Any) -> None: ...

    def bind(self, parameters: Mapping[str, Any]) -> None: ...

    def flatten(self, obs: Observation) -> np.ndarray[Any, Any]: ...

    def manifest(self) -> Manifest: ...

    def in_numpy(self) -> Any: ...


class PolicyIntake(ABC):
    """Has the newest policy ready for `take`.

    Attributes:
        slots: where policies arrive; None: there is no connection.
        probe: what a policy must have answers to before it drives.
        verdicts: on those that were loaded here.
        ready: its first item is the word of the newest policy that can be taken; 0: there is none.
        taken: the word of the one that was taken last; 0: none was.
    """

    slots: PolicySlots | None

    def __init__(self, slots: PolicySlots | None, probe: PolicyProbe, lane: int, ready: Sequence[int]) -> None:
        self.slots = slots
        self._lane = lane
        self.probe = probe
        self.verdicts = Verdicts()
        self.ready = ready
        self.taken = 0

    @property
    def has_new(self) -> bool:
        """Whether a newer policy is ready."""
        return self.ready[0] != self.taken

    @abstractmethod
    def take(self, acting: DrivingActor) -> PolicyInSlot | None:
        """Swap the acting instance for the newest policy's (environment's thread); None: there is no newer one."""

    def on_published(self) -> int:
        """The link has put a policy into a slot, and cannot say whether it is fit to act (the thread that it wakes).

        Returns:
            The word of a policy that was checked here and is fit to act; 0: none was.
        """
        return 0

    def wait_for_new(self, timeout_s: float) -> bool:
        """Wait until a policy is ready."""
        until = time.monotonic() + timeout_s
        while not self.has_new and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return self.has_new

    def load_file(self, actor: DrivingActor, path: Path) -> int:
        """Load weights from the disk into a new instance; they must pass the checks of those from the network.

        Returns:
            The version that the file says; 0: it says none.

        Raises:
            DamagedPolicyError: the file is not as it was written.
            PolicyError: they are not fit to act; the message names the file.
            OSError: the file cannot be read.
        """
        card, weights = read_policy(path)
        try:
            self.probe.load(actor, weights)
        except PolicyError as error:
            advice = "give both their values of then, or choose another policy or another --run_name"
            raise PolicyError(f"{path}: {error}; {advice}") from None
        return 0 if card is None else card.version


class NumpyIntake(PolicyIntake):
    """Of an actor in numpy; the link has checked what is ready."""

    slots: PolicySlots

    def __init__(
        self,
        slots: PolicySlots,
        probe: PolicyProbe,
        actor: DrivingActor,
        make_actor: Callable[[], DrivingActor],
        lane: int = 0,
    ) -> None:
        """`actor` acts until there is a policy, `make_actor` makes others like it; the link sees what lane 0 sees."""
        super().__init__(slots, probe, lane, slots.ready)
        if lane == 0:
            actor.network.input = slots.input
        self._actors = [make_actor() for _ in slots.slots]
        for weights, other in zip(slots.slots, self._actors, strict=True):
            other.network.input, other.network.random = actor.network.input, actor.network.random
            other.bind(weights.arrays())

    def take(self, acting: DrivingActor) -> PolicyInSlot | None:
        if not self.has_new:
            return None
        policy = self.slots.take(self._lane)
        self.taken = policy.word
        return policy._replace(actor=self._actors[policy.slot])


class TorchIntake(PolicyIntake):
    """Of any other actor: its weights are loaded and probed in the thread that the link wakes."""

    def __init__(
        self, slots: PolicySlots | None, probe: PolicyProbe, make_actor: Callable[[], DrivingActor], lane: int = 0
    ) -> None:
        """`make_actor` makes another instance of the actor, on its device."""
        self._word = [0]
        super().__init__(slots, probe, lane, self._word)
        self._make_actor = make_actor
        self._spares: list[DrivingActor] = []  # any thread appends, the link's pops
        self._ready: PolicyInSlot | None = None
        self._swapping = threading.Lock()  # held for pointer swaps only

    def on_published(self) -> int:
        assert self.slots is not None
        if not self.slots.has_new(self._lane):  # it came with the one before
            return 0
        policy = self.slots.take(self._lane)
        actor = self._spares.pop() if self._spares else self._make_actor()
        try:
            self.probe.load(actor, self.slots.slots[policy.slot])
        except PolicyError as error:
            self._spares.append(actor)
            self.verdicts.refuse(policy.version, error)
            return 0
        self.verdicts.accept(policy.version)
        with self._swapping:
            if self._ready is not None:
                self._spares.append(self._ready.actor)
            self._ready = policy._replace(actor=actor)
            self._word[0] = policy.word
        return policy.word

    def take(self, acting: DrivingActor) -> PolicyInSlot | None:
        with self._swapping:
            policy, self._ready = self._ready, None
        if policy is not None:
            self.taken = policy.word
            policy.actor.carry_over(acting)
            self._spares.append(acting)
        return policy
