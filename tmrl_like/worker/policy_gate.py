"""The link's part in bringing a policy to the control loop: what is received is checked before it
can be taken.
"""

from __future__ import annotations

import datetime
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tmrl_like.base.text import one_line
from tmrl_like.errors import DecodingError, PolicyError
from tmrl_like.policies.layers import Floats
from tmrl_like.policies.network import Network
from tmrl_like.policies.weight_file import (
    Manifest,
    Weights,
    refuse_misfit,
    refuse_not_finite,
    write_weights,
)
from tmrl_like.wire import messages as m
from tmrl_like.wire.policy import PolicyAssembler
from tmrl_like.worker.slots import PolicySlots

log = logging.getLogger("tmrl_like.worker")

_MAX_WAITING = 10


class Verdicts:
    """Logs which policies are refused, and why: once for as long as the reason stays the same.

    Attributes:
        alarm: why the newest policy was refused; empty: it was not.
    """

    def __init__(self) -> None:
        self.alarm = ""

    def refuse(self, version: int, error: Exception) -> None:
        """Report that a policy is not fit to act."""
        why = f" is refused, the one before stays: {one_line(str(error), 1000)}"
        if not self.alarm.endswith(why):
            self.alarm = f"policy {version}{why}"
            log.error("%s", self.alarm)

    def accept(self, version: int) -> None:
        """Report that a policy is fit to act."""
        if self.alarm:
            log.info("policy %d is fit to act again", version)
        self.alarm = ""


@dataclass(eq=False)
class PolicyGate:
    """Receives policies into free slots, checks them, and makes the newest one ready.

    Attributes:
        slots: where policies go.
        actor: name of the actor's class, for messages.
        network: computes the actions of a policy; None: this process cannot, and the other one
            probes policies.
        probes: float32 [N, R], flat observations for which a policy must have an action.
        verdicts: on the policies received.
    """

    slots: PolicySlots
    actor: str
    network: Network | None
    probes: Floats

    def __post_init__(self) -> None:
        self.verdicts = Verdicts()
        # of the policy that arrives
        self._slot = 0
        self._manifest: Manifest = {}
        self._assembler = PolicyAssembler(self._memory_for)

    def _memory_for(self, manifest: Manifest) -> memoryview:
        """Return a free slot's memory for a policy that begins to arrive. Raises PolicyError if its
        parameters do not fit.
        """
        refuse_misfit(self.actor, self.slots.slots[0].manifest, manifest)
        self._slot, self._manifest = self.slots.free_slot(), manifest
        return memoryview(self.slots.slots[self._slot].data)

    def add(self, frame: m.PolicyFrame, body: memoryview, received_at: float) -> int:
        """Take a frame that arrived at `received_at`, by `time.perf_counter()`; return the word of
        the policy that it makes ready, or 0.
        """
        try:
            if self._assembler.add(frame, body) is None:
                return 0
            self._check()
        except (DecodingError, PolicyError) as error:
            self.verdicts.refuse(frame.version, error)
            return 0
        self.verdicts.accept(frame.version)
        return self.slots.publish(self._slot, frame.version, frame.published_at_s, received_at)

    def _check(self) -> None:
        weights = self.slots.slots[self._slot]
        if list(self._manifest) != list(weights.manifest):  # same names, other order
            came = Weights(self._manifest, bytes(weights.data)).arrays()
            for name, values in weights.arrays().items():
                values[...] = came[name]
        refuse_not_finite(weights)
        if self.network is not None:
            self.network.bind(weights.arrays())
            newest = self.slots.input[None].copy()
            real = newest if np.isfinite(newest).all() else newest[:0]
            self.network.check(np.vstack((self.probes, real)))


class PolicyFiles:
    """Keeps received weights on disk: the newest at `path`, every k-th permanently.

    The connection's thread adds them; another thread writes them, however slow the disk is.
    """

    def __init__(self, path: Path | None, history_prefix: Path | None, history_every: int) -> None:
        self._path = path
        self._history_prefix = history_prefix
        self._history_every = history_every
        self._count = 0
        self._failed = False
        self._waiting: dict[Path, Weights] = {}  # what is to be written to each file

    def add(self, version: int, weights: Weights) -> None:
        """Copy weights, to be written. If too many wait, the oldest are left out."""
        self._count += 1
        paths = [] if self._path is None else [self._path]
        if self._history_prefix and self._history_every and self._count % self._history_every == 0:
            stamp = datetime.datetime.now().strftime("%Y_%m_%d_%H_%M_%S")
            name = f"{self._history_prefix.name}_{stamp}_v{version}.safetensors"
            paths.append(self._history_prefix.with_name(name))
        if paths:
            # the slot may get another policy meanwhile
            copy = weights._replace(data=np.frombuffer(weights.data, np.uint8).copy().data)
            for path in paths:
                self._waiting.pop(path, None)  # so that the newest comes last
                self._waiting[path] = copy
        for path in list(self._waiting)[:-_MAX_WAITING]:
            self._waiting.pop(path, None)

    def write(self) -> None:
        """Write the weights that wait. A full disk does not stop the worker; it is logged once."""
        try:
            while self._waiting:
                write_weights(*self._waiting.popitem())
                self._failed = False
        except OSError as error:
            if not self._failed:
                log.error(
                    "cannot save the policy: %s; acting goes on, saving is tried with the next",
                    error,
                )
            self._failed = True
