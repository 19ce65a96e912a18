"""New weights, from the wire to the control loop, without the loop ever waiting for them.

Two instances of the actor take turns: one acts, the other is loaded by the connection's thread. The
loop swaps them by reference between two steps. A third one is made when a policy arrives while another
one waits to be taken, so that a policy that turns out to be unfit never costs one that was fit.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tmrl_like.base.files import write_atomically
from tmrl_like.errors import DecodingError, PolicyError
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.policies.weight_file import first_not_finite, read_file
from tmrl_like.wire import messages as m
from tmrl_like.wire.policy import PolicyAssembler

if TYPE_CHECKING:
    from tmrl_like.policies.actor import ActorModule

log = logging.getLogger("tmrl_like.worker")

_ALARM_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """An actor ready to act."""

    actor: ActorModule
    version: int
    published_at_s: float  # Unix time, by the trainer's clock
    received_at: float  # `time.perf_counter()` when its last frame was here


class PolicyIntake:
    """Receives policies, checks them, has the newest ready for `take`.

    Attributes:
        probe: what a policy must have answers to before it drives.
        received: policies that were fit to act.
        alarm: why the newest policy was refused; empty: it was not.
    """

    def __init__(self, make_actor: Callable[[], ActorModule], probe: PolicyProbe) -> None:
        """`make_actor` makes another instance of the actor, on its device; `probe`: see the attribute."""
        self._make_actor = make_actor
        self.probe = probe
        self._assembler = PolicyAssembler()
        self._changed = threading.Condition()  # held for pointer swaps only
        self._spares: list[ActorModule] = []  # any thread appends, the connection's pops
        self._ready: LoadedPolicy | None = None
        self._refused = 0
        self._reason = ""
        self.received = 0
        self.alarm = ""

    def add(self, frame: m.PolicyFrame, body: memoryview) -> memoryview | None:
        """Take a frame (connection's thread).

        A policy that is not fit to act is refused and the reason said, once for as long as it stays the same.

        Returns:
            With the last frame of a policy that is fit: its weights, valid until the next call.
        """
        try:
            weights = self._assembler.add(frame, body)
            if weights is None:
                return None
            received_at = time.perf_counter()
            actor = self._load(weights)
        except (DecodingError, PolicyError) as error:
            self._refuse(frame.version, str(error))
            return None
        self._accept(LoadedPolicy(actor, frame.version, frame.published_at_s, received_at))
        return weights

    def _load(self, weights: memoryview) -> ActorModule:
        """Load into an instance that nobody uses; the policy that is ready stays ready if that fails."""
        actor = self._spares.pop() if self._spares else self._make_actor()
        try:
            self._load_into(actor, weights)
        except PolicyError:
            self._spares.append(actor)
            raise
        return actor

    def _load_into(self, actor: ActorModule, weights: bytes | memoryview) -> None:
        self.probe.calibrate(actor)
        actor.load_weights(weights)
        if name := first_not_finite(read_file(weights)):
            raise PolicyError(f"{name} holds values that are not finite")
        self.probe.check(actor)

    def load_file(self, actor: ActorModule, path: Path) -> None:
        """Load weights from the disk into a new instance; they must pass the checks of those from the network.

        Raises:
            PolicyError: they are not fit to act; the message names the file.
            OSError: the file cannot be read.
        """
        try:
            self._load_into(actor, path.read_bytes())
        except PolicyError as error:
            raise PolicyError(f"{path}: {error}; remove the file to start without it") from None

    def _refuse(self, version: int, reason: str) -> None:
        self._refused += 1
        if reason == self._reason:
            return
        self._reason = reason
        self.alarm = f"policy {version} is refused, the one before stays: {reason}"[:_ALARM_CHARACTERS]
        log.error("%s", self.alarm)

    def _accept(self, policy: LoadedPolicy) -> None:
        if self.alarm:
            log.info("policy %d is fit to act again; %d were refused", policy.version, self._refused)
        self._refused, self._reason, self.alarm = 0, "", ""
        with self._changed:
            if self._ready is not None:
                self._spares.append(self._ready.actor)
            self._ready = policy
            self.received += 1
            self._changed.notify_all()

    @property
    def has_new(self) -> bool:
        """Whether a newer policy is ready. Costs one attribute read."""
        return self._ready is not None

    def take(self, acting: ActorModule) -> LoadedPolicy | None:
        """Swap the acting instance for the newest one (environment's thread)."""
        with self._changed:
            policy, self._ready = self._ready, None
        if policy is not None:
            policy.actor.carry_over(acting)
            self._spares.append(acting)
        return policy

    def drop(self) -> bool:
        """Forget a policy that is ready; whether there was one."""
        with self._changed:
            policy, self._ready = self._ready, None
        if policy is not None:
            self._spares.append(policy.actor)
        return policy is not None

    def wait_for_new(self, timeout_s: float) -> bool:
        """Wait until a policy is ready."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ready is not None, timeout_s)


class PolicyFiles:
    """Keeps received weights on disk: the newest at `path`, every k-th for good."""

    def __init__(self, path: Path | None, history_prefix: Path | None, history_every: int) -> None:
        self.path = path
        self._history_prefix = history_prefix
        self._history_every = history_every
        self._count = 0
        self._failed = False

    def save(self, version: int, weights: memoryview) -> None:
        """Write (connection's thread). A full disk does not stop the worker; it is logged once."""
        self._count += 1
        try:
            if self.path is not None:
                write_atomically(self.path, weights)
            if self._history_every and self._history_prefix and self._count % self._history_every == 0:
                stamp = datetime.datetime.now().strftime("%Y_%m_%d_%H_%M_%S")
                name = f"{self._history_prefix.name}_{stamp}_v{version}.safetensors"
                write_atomically(self._history_prefix.with_name(name), weights)
        except OSError as error:
            if not self._failed:
                log.error("cannot save the policy: %s; acting goes on, saving is tried with the next", error)
            self._failed = True
        else:
            self._failed = False
