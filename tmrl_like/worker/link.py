"""The link: a worker's half of the conversation with the server, beside the process that drives the environment.

It seals and sends what the control loop left in the sample log, and has checked policies ready for it. The two meet in
a folder in shared memory, whatever happens to one of them, and tell each other the rest in a few messages: once when it
starts (`Start`), then five times a second, and when something changes. It imports neither torch nor gymnasium nor any
code of the user's.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tmrl_like.base import clocks
from tmrl_like.delivery.folder import leave
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.session import Session
from tmrl_like.errors import RefusedError, ShortageError, TmrlLikeError
from tmrl_like.policies.gate import PolicyFiles, PolicyGate
from tmrl_like.policies.network import Network
from tmrl_like.policies.slots import PolicySlots
from tmrl_like.transport import KeyFolder, connect_to_one
from tmrl_like.wire import messages as m
from tmrl_like.worker.link_messages import (
    STATUS_EVERY_S,
    Failed,
    Fit,
    FromLink,
    Leave,
    Published,
    Ready,
    Start,
    State,
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
        state: the control loop's; any thread replaces it.
        fit: words of policies that are to be kept on disk; any thread appends.
    """

    def __init__(
        self,
        outboxes: Sequence[Outbox],
        gate: PolicyGate,
        slots: PolicySlots,
        files: PolicyFiles,
        state: State,
        on_policy: Callable[[int], None],
        tell: Callable[[Trained], None],
    ) -> None:
        """`on_policy` is called with the word of each policy that is ready, `tell` with what else arrives."""
        self.state = state
        self.fit: deque[int] = deque()
        self._outboxes = outboxes
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
        if welcome.feed != self._feed or is_new:
            for outbox in self._outboxes:
                outbox.retransmit(from_the_start=welcome.feed != self._feed)
                self._note_trained(outbox, outbox.forgotten if welcome.feed != self._feed else 0)
        self._feed = welcome.feed

    def _note_trained(self, outbox: Outbox, sequence: int) -> None:
        if samples := outbox.samples_up_to(sequence):
            self._tell(Trained(outbox.incarnation, samples))

    def on_message(self, message: m.AnyMessage, body: memoryview) -> None:
        """Acknowledgements, dismissals of what earlier processes left, and policies."""
        if isinstance(message, m.PolicyFrame):
            if message.index == message.frames - 1:
                self._policy_received = message.version
                self._beat_is_due = True
            if not self.state.expert and (word := self._gate.add(message, body)):
                self._on_policy(word)
        elif isinstance(message, m.Ack):
            for outbox in self._outboxes:
                outbox.on_ack(message)
                if outbox.incarnation == message.incarnation:
                    self._note_trained(outbox, message.trained)
        elif isinstance(message, m.Dismissal):
            for outbox in self._outboxes:
                if outbox.incarnation == message.incarnation:
                    raise RefusedError(
                        f"this worker's samples do not fit those in the trainer's memory: {message.reason}; start "
                        "both with the same environment and sample_compressor"
                    )
                outbox.set_aside(message.incarnation, message.reason)

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        while self.fit:
            word = self.fit.popleft()
            slot = self._slots.holds(word)
            if slot is not None:
                self._files.add(self._slots.version(slot), self._slots.slots[slot])
        if self._beat_is_due and connected:
            self._beat_is_due = not send(m.encode(self.beat()))
        for outbox in self._outboxes:
            outbox.pump(send, connected and self._feed != 0, self.state.awaits)
        return _AWAITING_TICK_S if self.state.awaits else _TICK_S

    def pending(self) -> bool:
        return self._feed != 0 and any(outbox.pending() for outbox in self._outboxes)

    def beat(self) -> m.Beat:
        state, outboxes = self.state, self._outboxes
        alarms = dict.fromkeys((self._gate.verdicts.alarm, state.alarm, *(outbox.alarm for outbox in outboxes)))
        return m.Beat(
            worker=outboxes[0].worker,
            policy_version=state.policy_version,
            policy_age_s=time.perf_counter() - state.policy_received_at if state.policy_received_at else 0.0,
            policy_received=self._policy_received,
            env_steps=state.env_steps,
            overruns=state.overruns,
            unacknowledged_samples=sum(outbox.unacknowledged_samples() for outbox in outboxes),
            expert=state.expert,
            lost_samples=sum(outbox.lost_samples for outbox in outboxes),
            alarm="; ".join(filter(None, alarms)),
            safe_steps=state.safe_steps,
            env_faults=state.env_faults,
            env_rebuilds=state.env_rebuilds,
            ended=state.ended,
            awaits=state.awaits,
            time_step_s=state.time_step_s,
            late_steps=state.late_steps,
            action_delay_s=state.action_delay_s,
            returns=state.returns,
            driver=state.driver,
            at_s=time.time(),
            up_s=clocks.up_s(),
        )


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
        slots = PolicySlots(self._shared, start.manifest, start.input_size, start.num_lanes)
        probes = np.frombuffer(start.probes, np.float32).reshape(-1, max(1, start.input_size))
        network = None if start.network is None else Network(start.network)
        gate = PolicyGate(slots, start.actor, start.manifest, network, probes)
        self._files = PolicyFiles(_path(start.weights), _path(start.history), start.model_history)
        with contextlib.ExitStack() as undo:  # what a failure below must not leave behind
            keys = KeyFolder(Path(start.keys))
            link = connect_to_one(start.transport, start.servers, start.worker, keys, start.limits)
            undo.callback(link.close)
            self._outboxes: list[Outbox] = []
            for lane in start.lanes:
                self._outboxes.append(
                    Outbox(Path(lane.folder), start.worker, lane.incarnation, start.outbox, epoch_s=start.epoch_s)
                )
                undo.callback(self._outboxes[-1].close)
            self._role = WorkerRole(self._outboxes, gate, slots, self._files, start.state, self._on_policy, tell)
            others = [lane.incarnation for lane in start.lanes[1:]]
            self._session = Session(
                link,
                start.servers[0],
                self._role,
                "worker",
                start.worker,
                start.spaces,
                _path(start.weights),
                start.lanes[0].incarnation,
                tuple(others + [dead for outbox in self._outboxes for dead in outbox.takes_over]),
            )
            undo.pop_all()
        tell(Ready())

    def _on_policy(self, word: int) -> None:
        if self._knows:
            self._role.fit.append(word)
        self._tell(Published())

    @property
    def takes_turns(self) -> bool:
        """Whether its owner calls `turn`."""
        return self._session.takes_turns

    def turn(self) -> None:
        """See `Session.turn`."""
        self._session.turn()
        self._files.write()

    @property
    def thread_id(self) -> int:
        """Native id of the connection's thread."""
        return self._session.thread_id

    def on_message(self, message: ToLink) -> None:
        """Something that the other process says."""
        if isinstance(message, State):
            self._role.state = message
        elif isinstance(message, Fit):
            self._role.fit.append(message.word)
        elif isinstance(message, Leave):
            self._role.state = message.state
            self.leave(message.flush_s)

    def leave(self, flush_s: float = _ORPHAN_FLUSH_S) -> None:
        """Have `serve` send what is left, for so long at most, and return. Any thread."""
        self._flush_s = flush_s
        self._leaving.set()

    def serve(self) -> None:
        """Until `leave` is called, or the connection fails for good."""
        while not self._leaving.wait(STATUS_EVERY_S) and not self._session.failed:
            beat = self._role.beat()
            kept, lost = beat.unacknowledged_samples, beat.lost_samples
            self._tell(Status(self._session.connected, kept, lost, beat.alarm))
            self._files.write()
        try:
            self._session.check()
        except Exception as error:
            self._tell(failure(error))
            self._leaving.wait()
        for outbox in self._outboxes:
            outbox.seal()
        self._session.close(self._flush_s)
        self._files.write()
        for outbox in self._outboxes:
            outbox.close()
        leave(self._shared)


def failure(error: BaseException) -> Failed:
    """An error as the other process raises it."""
    if isinstance(error, TmrlLikeError):
        return Failed(type(error).__name__, str(error), isinstance(error, ShortageError))
    return Failed(TmrlLikeError.__name__, f"the link failed: {error!r}", isinstance(error, MemoryError | OSError))


def _path(text: str) -> Path | None:
    return Path(text) if text else None
