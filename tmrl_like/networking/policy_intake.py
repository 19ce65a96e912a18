"""New weights, from the wire to the control loop, without the loop ever waiting for them.

Two instances of the actor take turns: one acts, the other is loaded by the connection's thread. The
loop swaps them by reference between two steps.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tmrl_like.actor import ActorModule
from tmrl_like.errors import DecodingError, PolicyError
from tmrl_like.files import write_atomically
from tmrl_like.wire import messages as m
from tmrl_like.wire.policy import PolicyAssembler

log = logging.getLogger("tmrl_like.worker")


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """An actor ready to act."""

    actor: ActorModule
    version: int
    published_at_s: float  # Unix time, by the trainer's clock
    weights: bytes


class PolicyIntake:
    """Receives policies, checks them, has the newest ready for `take`."""

    def __init__(self, make_actor: Callable[[], ActorModule]) -> None:
        """Prepare.

        Args:
            make_actor: makes a second instance of the actor, on its device.
        """
        self._make_actor = make_actor
        self._assembler = PolicyAssembler()
        self._lock = threading.Lock()  # held for pointer swaps only
        self._spare: ActorModule | None = None
        self._ready: LoadedPolicy | None = None
        self._arrived = threading.Condition()
        self.received = 0
        self.alarm = ""

    def add(self, frame: m.PolicyFrame, body: memoryview) -> LoadedPolicy | None:
        """Take a frame (connection's thread). A policy that is not fit to act is refused and said why."""
        try:
            weights = self._assembler.add(frame, body)
            if weights is None:
                return None
            policy = LoadedPolicy(self._load(weights), frame.version, frame.published_at_s, weights)
        except (DecodingError, PolicyError) as error:
            self.alarm = f"policy {frame.version} is refused, the one before stays: {error}"
            log.error("%s", self.alarm)
            return None
        self.alarm = ""
        with self._lock:
            self._ready = policy
        with self._arrived:
            self.received += 1
            self._arrived.notify_all()
        return policy

    def _load(self, weights: bytes) -> ActorModule:
        with self._lock:
            actor = self._ready.actor if self._ready else self._spare
            self._ready = self._spare = None
        actor = actor or self._make_actor()
        try:
            actor.load_weights(weights)
            _check_finite(actor)
        except PolicyError:
            with self._lock:
                self._spare = actor
            raise
        return actor

    @property
    def has_new(self) -> bool:
        """Whether a newer policy is ready. Costs one attribute read."""
        return self._ready is not None

    def take(self, acting: ActorModule) -> LoadedPolicy | None:
        """Swap the acting instance for the newest one (environment's thread)."""
        with self._lock:
            policy, self._ready = self._ready, None
            if policy is not None:
                self._spare = acting
        if policy is not None:
            policy.actor.carry_over(acting)
        return policy

    def drop(self) -> bool:
        """Forget a policy that is ready; whether there was one."""
        with self._lock:
            policy, self._ready = self._ready, None
            if policy is not None:
                self._spare = policy.actor
        return policy is not None

    def wait_for_new(self, timeout_s: float) -> bool:
        """Wait until a policy is ready."""
        until = time.monotonic() + timeout_s
        with self._arrived:
            while self._ready is None and time.monotonic() < until:
                self._arrived.wait(max(0.0, until - time.monotonic()))
        return self._ready is not None


class PolicyFiles:
    """Keeps received weights on disk: the newest at `path`, every k-th for good."""

    def __init__(self, path: Path | None, history_prefix: Path | None, history_every: int) -> None:
        self.path = path
        self._history_prefix = history_prefix
        self._history_every = history_every
        self._count = 0
        self._failed = False

    def save(self, policy: LoadedPolicy) -> None:
        """Write (connection's thread). A full disk does not stop the worker; it is said once."""
        self._count += 1
        try:
            if self.path is not None:
                write_atomically(self.path, policy.weights)
            if self._history_every and self._history_prefix and self._count % self._history_every == 0:
                stamp = datetime.datetime.now().strftime("%Y_%m_%d_%H_%M_%S")
                name = f"{self._history_prefix.name}_{stamp}_v{policy.version}.safetensors"
                write_atomically(self._history_prefix.with_name(name), policy.weights)
        except OSError as error:
            if not self._failed:
                log.error("cannot save the policy: %s; acting goes on, saving is tried with the next", error)
            self._failed = True
        else:
            self._failed = False


def _check_finite(actor: ActorModule) -> None:
    floats = {name: t for name, t in actor.state_dict().items() if t.is_floating_point() and t.numel()}
    if not floats:
        return
    finite = torch.isfinite(torch.stack([t.sum().float() for t in floats.values()]))  # nan and inf survive a sum
    if not bool(finite.all()):
        name = list(floats)[int(torch.nonzero(~finite)[0])]
        raise PolicyError(f"{name} holds values that are not finite")
