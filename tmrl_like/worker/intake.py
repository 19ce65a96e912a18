"""Brings new weights from the memory that the link fills to the control loop, which never waits for
them.

A numpy actor acts on the parameters where they lie: there is an instance for each slot, and taking
a policy means switching the instance. For a torch actor, weights are first loaded and probed, in
the thread that the link wakes: one instance acts while another one is loaded. A third one is made
if a policy arrives while another one waits to be taken, so that a policy that turns out to be unfit
never costs one that was fit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tmrl_like.errors import PolicyError
from tmrl_like.policies.acting import Actor, NetworkActor
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.worker.policy_gate import Verdicts
from tmrl_like.worker.slots import PolicyInSlot, PolicySlots


class Ready(NamedTuple):
    """A policy that can drive, and the instance that acts with it."""

    policy: PolicyInSlot
    actor: Actor


class PolicyIntake:
    """Has the newest policy ready for `take`. This base class is for standalone workers, where none
    arrives.

    Attributes:
        probe: observations for which a policy must have actions before it drives.
        verdicts: on policies that were loaded here.
        ready: its first item is the word of the newest policy that can be taken; 0: there is none.
        taken: the word of the policy that was taken last; 0: none was.
    """

    def __init__(self, probe: PolicyProbe, ready: Sequence[int] = (0,)) -> None:
        self.probe = probe
        self.verdicts = Verdicts()
        self.ready = ready
        self.taken = 0

    @property
    def has_new(self) -> bool:
        """Whether a newer policy is ready."""
        return self.ready[0] != self.taken

    def take(self, acting: Actor) -> Ready:
        """Return the newest policy, which is ready, and the instance that replaces `acting`.
        Environment's thread.
        """
        raise NotImplementedError

    def on_published(self) -> int:
        """Check a policy that the link has put into a slot and cannot check itself. Runs in the
        thread that the link wakes.

        Returns:
            The word of a policy that was checked here and is fit to act; 0: none was.
        """
        return 0


class NumpyIntake(PolicyIntake):
    """The intake of a numpy actor; the link has checked what is ready."""

    def __init__(
        self,
        slots: PolicySlots,
        probe: PolicyProbe,
        actor: NetworkActor,
        make_actor: Callable[[], Actor],
        lane: int = 0,
    ) -> None:
        """Take the actor that acts until there is a policy, and `make_actor`, which makes others
        like it. The link checks policies on what lane 0 observes.
        """
        super().__init__(probe, slots.ready)
        self._slots, self._lane = slots, lane
        if lane == 0:
            actor.network.input = slots.input
        made = [make_actor().in_numpy() for _ in slots.slots]
        self._actors = [network for network in made if network is not None]
        for weights, other in zip(slots.slots, self._actors, strict=True):
            other.network.input, other.network.random = actor.network.input, actor.network.random
            other.network.bind(weights.arrays())

    def take(self, acting: Actor) -> Ready:
        policy = self._slots.take(self._lane)
        self.taken = policy.word
        return Ready(policy, self._actors[policy.slot])


class TorchIntake(PolicyIntake):
    """The intake of any other actor: weights are loaded and probed in the thread that the link
    wakes.

    Attributes:
        slots: where policies arrive.
    """

    def __init__(
        self, slots: PolicySlots, probe: PolicyProbe, make_actor: Callable[[], Actor], lane: int = 0
    ) -> None:
        """`make_actor` makes another instance of the actor, on its device."""
        self._word = [0]
        super().__init__(probe, self._word)
        self.slots, self._lane = slots, lane
        self._make_actor = make_actor
        self._spares: list[Actor] = []  # any thread appends, the link's thread pops
        self._ready: Ready | None = None
        self._swapping = threading.Lock()  # held for pointer swaps only

    def on_published(self) -> int:
        if not self.slots.has_new(self._lane):  # already taken, at the message before this one
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
            self._ready = Ready(policy, actor)
            self._word[0] = policy.word
        return policy.word

    def take(self, acting: Actor) -> Ready:
        with self._swapping:
            ready, self._ready = self._ready, None
        assert ready is not None
        self.taken = ready.policy.word
        ready.actor.carry_over(acting)
        self._spares.append(acting)
        return ready
