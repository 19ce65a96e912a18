"""The link: a worker's half of the conversation with the server, beside the process that drives the environment.

It sends what the control loops left in their sample logs, and has checked policies ready for them. The two meet in
a folder in shared memory, whatever happens to one of them, and tell each other the rest in a few messages: once when it
starts (`Start`), then five times a second, and when something changes. It imports neither torch nor gymnasium nor any
code of the user's.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from tmrl_like.base import clocks
from tmrl_like.delivery.folder import leave
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.errors import RefusedError, ShortageError, TmrlLikeError
from tmrl_like.policies.gate import PolicyFiles, PolicyGate
from tmrl_like.policies.network import Network
from tmrl_like.policies.slots import PolicySlots
from tmrl_like.session.ring import connect_to_one
from tmrl_like.session.session import Session
from tmrl_like.transport import KeyFolder
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition
from tmrl_like.worker.link_messages import (
    STATUS_EVERY_S,
    Failed,
    Fit,
    FromLink,
    Hasten,
    Leave,
    Published,
    Ready,
    Start,
    Status,
    ToLink,
    Trained,
)

_TICK_S = 0.01
_AWAITING_TICK_S = 0.001
_ORPHAN_FLUSH_S = 3.0  # for how long it sends what is left when the other process is gone


class WorkerRole:
    """Sends what the control loop left in the sample log, has new weights ready for it (see `session.Role`).

    Attributes:
        condition: the control loop's; any thread replaces it.
        fit: words of policies that are to be kept on disk; any thread appends.
    """

    def __init__(
        self,
        outbox: Outbox,
        gate: PolicyGate,
        slots: PolicySlots,
        files: PolicyFiles,
        condition: Condition,
        on_policy: Callable[[int], None],
        tell: Callable[[Trained], None],
    ) -> None:
        """`on_policy` is called with the word of each policy that is ready, `tell` with what else arrives."""
        self.condition = condition
        self.fit: deque[int] = deque()
        self._outbox = outbox
        self._gate = gate
        self._slots = slots
        self._files = files
        self._on_policy = on_policy
        self._tell = tell
        self._feed = 0
        self._policy_received = 0
        self._beat_is_due = False

    def on_welcome(self, welcome: m.Welcome, is_new: bool) -> None:
        """Send again what may be lost: to another trainer perhaps, or because a connection broke.

        First a beat: by it the trainer knows how old samples are.
        """
        self._beat_is_due = True
        is_another_trainer = welcome.feed != self._feed
        if is_another_trainer or is_new:
            self._outbox.send_again(is_another_trainer)
        if is_another_trainer:
            for incarnation in self._outbox.incarnations:
                self._tell(Trained(incarnation, self._outbox.stored(incarnation)))
        self._feed = welcome.feed

    def on_message(self, message: m.AnyMessage, body: memoryview, data: bytes | memoryview) -> None:
        """Acknowledgements, dismissals of what earlier processes left, and policies."""
        if isinstance(message, m.PolicyFrame):
            if message.index == message.frames - 1:
                self._policy_received = message.version
                self._beat_is_due = True
            if not self.condition.expert and (word := self._gate.add(message, body)):
                self._on_policy(word)
        elif isinstance(message, m.Ack):
            self._outbox.on_ack(message)
            if message.trained:
                self._tell(Trained(message.incarnation, message.trained))
        elif isinstance(message, m.Dismissal):
            if message.incarnation in self._outbox.incarnations:
                raise RefusedError(
                    f"this worker's samples do not fit those in the trainer's memory: {message.reason}; start "
                    "both with the same environment and sample_compressor"
                )
            self._outbox.set_aside(message.incarnation, message.reason)

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        while self.fit:
            word = self.fit.popleft()
            slot = self._slots.holds(word)
            if slot is not None:
                self._files.add(self._slots.version(slot), self._slots.slots[slot])
        if self._beat_is_due and connected:
            self._beat_is_due = not send(m.encode(self.beat()))
        self._outbox.pump(send, connected and self._feed != 0, self.condition.awaits)
        return _AWAITING_TICK_S if self.condition.awaits else _TICK_S

    def pending(self) -> bool:
        return self._feed != 0 and self._outbox.pending()

    def beat(self) -> m.Beat:
        outbox = self._outbox
        alarms = dict.fromkeys((self._gate.verdicts.alarm, self.condition.alarm))
        condition = msgspec.structs.replace(
            self.condition,
            unacknowledged_samples=outbox.unacknowledged_samples(),
            lost_samples=outbox.lost_samples,
            alarm="; ".join(filter(None, alarms)),
        )
        return m.Beat(outbox.worker, condition, self._policy_received, at_s=time.time(), up_s=clocks.up_s())


class Link:
    """The connection and all that it does, in the threads of whoever makes it."""

    def __init__(self, start: Start, tell: Callable[[FromLink], None]) -> None:
        """Take over what is in the sample log, and connect, without waiting for the server.

        Any thread calls `tell`, which takes what the other process is to know.
        """
        self._tell = tell
        self._leaving = threading.Event()
        self._knows = start.network is not None
        self._shared = Path(start.shared)
        slots = PolicySlots(self._shared, start.manifest, start.input_size, len(start.incarnations))
        probes = np.frombuffer(start.probes, np.float32).reshape(-1, max(1, start.input_size))
        network = None if start.network is None else Network(start.network)
        gate = PolicyGate(slots, start.actor, start.manifest, network, probes)
        self._files = PolicyFiles(_path(start.weights), _path(start.history), start.model_history)
        with contextlib.ExitStack() as undo:  # what a failure below must not leave behind
            keys = KeyFolder(Path(start.keys))
            ring = connect_to_one(start.transport, start.servers, start.worker, keys, start.limits)
            undo.callback(ring.close)
            self._outbox = Outbox(
                Path(start.folder), start.worker, start.incarnations, start.outbox, epoch_s=start.epoch_s
            )
            undo.callback(self._outbox.close)
            self._role = WorkerRole(self._outbox, gate, slots, self._files, start.condition, self._on_policy, tell)
            first, *others = start.incarnations
            self._session = Session(
                ring,
                self._role,
                "worker",
                start.worker,
                spaces=start.spaces,
                model_path=_path(start.weights),
                incarnation=first,
                takes_over=(*others, *self._outbox.takes_over),
            )
            undo.pop_all()
        tell(Ready())

    def _on_policy(self, word: int) -> None:
        if self._knows:
            self._role.fit.append(word)
        self._tell(Published())

    @property
    def thread_id(self) -> int:
        """Native id of the connection's thread."""
        return self._session.thread_id

    def on_message(self, message: ToLink) -> None:
        """Something that the other process says."""
        if isinstance(message, Condition):
            self._role.condition = message
        elif isinstance(message, Fit):
            self._role.fit.append(message.word)
        elif isinstance(message, Hasten):
            self._outbox.hasten()
        elif isinstance(message, Leave):
            self._role.condition = message.condition
            self.leave(message.flush_s)

    def leave(self, flush_s: float = _ORPHAN_FLUSH_S) -> None:
        """Have `serve` send what is left, for so long at most, and return. Any thread."""
        self._flush_s = flush_s
        self._leaving.set()

    def serve(self) -> None:
        """Until `leave` is called, or the connection fails for good."""
        while not self._leaving.wait(STATUS_EVERY_S) and not self._session.failed:
            now = self._role.beat().condition
            kept, lost = now.unacknowledged_samples, now.lost_samples
            self._tell(Status(self._session.connected, kept, lost, now.alarm))
            self._files.write()
        try:
            self._session.check()
        except Exception as error:
            self._tell(failure(error))
            self._leaving.wait()
        self._outbox.hasten()
        self._session.close(self._flush_s)
        self._files.write()
        self._outbox.close()
        leave(self._shared)


def failure(error: BaseException) -> Failed:
    """An error as the other process raises it."""
    if isinstance(error, TmrlLikeError):
        return Failed(type(error).__name__, str(error), isinstance(error, ShortageError))
    return Failed(TmrlLikeError.__name__, f"the link failed: {error!r}", isinstance(error, MemoryError | OSError))


def _path(text: str) -> Path | None:
    return Path(text) if text else None
