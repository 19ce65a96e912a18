"""The link: a worker's connection to the server, in a process beside the one that drives the
environment.

It sends what the control loops have appended to their sample logs, and has checked policies ready
for them. The two processes share a folder in shared memory, whatever happens to one of them, and
exchange the rest in a few messages: one when the link starts (`Setup`), then five times a second,
and when something changes. The link imports neither torch nor gymnasium nor any of the user's code.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tmrl_like.base import clocks
from tmrl_like.base.threads import start_thread
from tmrl_like.delivery.folder import leave
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.errors import RefusedError, ShortageError, TmrlLikeError
from tmrl_like.policies.network import Network, input_size
from tmrl_like.session.session import Session, file_id
from tmrl_like.transport import KeyFolder, connect
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition, with_alarms
from tmrl_like.worker.link_messages import (
    STATUS_EVERY_S,
    Failed,
    Fit,
    FromLink,
    Hasten,
    Leave,
    Left,
    Published,
    Setup,
    Status,
    ToLink,
    Trained,
)
from tmrl_like.worker.policy_gate import PolicyFiles, PolicyGate
from tmrl_like.worker.slots import PolicySlots

_TICK_S = 0.01
_AWAITING_TICK_S = 0.001
_ORPHAN_FLUSH_S = 3.0  # how long it sends what is left after the other process has ended


@dataclass(eq=False)
class WorkerRole:
    """Sends what the control loops have appended to the sample logs, and has new weights ready for
    them (see `session.conversation.Role`).

    Attributes:
        outbox: sends the samples.
        gate: checks policies.
        files: keeps policies on disk.
        condition: the control loops' condition; any thread replaces it.
        tell: passes messages to the control loops' side.
        fit: words of policies that are to be kept on disk; any thread appends. The other side sends
            that of a policy which this one cannot check.
    """

    outbox: Outbox
    gate: PolicyGate
    files: PolicyFiles
    condition: Condition
    tell: Callable[[Published | Trained], object]

    def __post_init__(self) -> None:
        self.fit: deque[int] = deque()
        # from the newest welcome; 0: there is no trainer yet; None: no welcome yet
        self._feed: int | None = None
        self._policy_received = 0
        self._beat_is_due = False
        # frames of the newest policy, with their times, that wait until no expert acts
        self._frames: deque[tuple[m.PolicyFrame, memoryview, float]] = deque()

    def on_welcome(self, welcome: m.Welcome, is_new: bool) -> None:
        """Send again what may be lost, because there is another trainer or a connection broke.

        A beat goes first: it tells the trainer how old samples are.
        """
        self._beat_is_due = True
        is_another_trainer = welcome.feed != (self._feed or 0)
        if is_another_trainer or is_new:
            self.outbox.send_again(is_another_trainer)
        if is_another_trainer:
            for incarnation in self.outbox.incarnations:
                self.tell(Trained(incarnation, self.outbox.stored(incarnation)))
        self._feed = welcome.feed

    def on_message(self, message: m.AnyMessage, body: memoryview, data: bytes | memoryview) -> None:
        """Handle acknowledgements, dismissals of what earlier processes left, and policies."""
        if isinstance(message, m.PolicyFrame):
            if message.index == message.frames - 1:
                self._policy_received = message.version
                self._beat_is_due = True
            if message.index == 0:
                self._frames.clear()
            self._frames.append((message, body, time.perf_counter()))
            self._pass_frames_on()
        elif isinstance(message, m.Ack):
            self.outbox.on_ack(message)
            if message.trained:
                self.tell(Trained(message.incarnation, message.trained))
        elif isinstance(message, m.Dismissal):
            if message.incarnation in self.outbox.incarnations:
                raise RefusedError(
                    "this worker's samples do not fit those in the trainer's memory: "
                    f"{message.reason}; start both with the same environment and sample_compressor"
                )
            self.outbox.set_aside(message.incarnation, message.reason)

    def _pass_frames_on(self) -> None:
        """Pass frames on to the gate, unless an expert acts."""
        while self._frames and not self.condition.expert:
            if word := self.gate.add(*self._frames.popleft()):
                if self.gate.network is not None:  # control loops see its word in the slots
                    self.fit.append(word)
                else:
                    self.tell(Published())

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        self._pass_frames_on()
        while self.fit:
            if (held := self.gate.slots.held(self.fit.popleft())) is not None:
                self.files.add(*held)
        if self._beat_is_due and connected:
            self._beat_is_due = not send(m.encode(self.beat()))
        self.outbox.pump(send, connected and bool(self._feed), self.condition.awaits)
        return _AWAITING_TICK_S if self.condition.awaits else _TICK_S

    def pending(self) -> bool:
        return self._feed != 0 and self.outbox.pending()

    def beat(self) -> m.Beat:
        return m.Beat(
            self.outbox.worker,
            self.known(),
            self._policy_received,
            at_s=time.time(),
            up_s=clocks.up_s(),
        )

    def known(self) -> Condition:
        """Return the worker's condition, with what the link knows."""
        outbox = self.outbox
        waiting, lost = outbox.unacknowledged_samples(), outbox.lost_samples
        alarm = self.gate.verdicts.alarm
        return with_alarms(self.condition, alarm, unacknowledged_samples=waiting, lost_samples=lost)


class Link:
    """The connection and all its work, in threads of the process that makes it."""

    def __init__(
        self,
        setup: Setup,
        messages: Iterator[ToLink],
        tell: Callable[[FromLink], object],
        leaving: threading.Event,
    ) -> None:
        """Take over what is in the sample logs, and connect without waiting for the server.

        Args:
            setup: what the link is to do.
            messages: messages from the control loops' side, until it ends.
            tell: passes messages to that side, from any thread.
            leaving: when it is set, `serve` sends what is left and returns.
        """
        self._tell = tell
        self._leaving = leaving
        self._flush_s = _ORPHAN_FLUSH_S
        self._shared = Path(setup.shared)
        slots = PolicySlots(
            self._shared, setup.manifest, input_size(setup.network), len(setup.incarnations)
        )
        probes = np.frombuffer(setup.probes, np.float32).reshape(-1, max(1, slots.input.size))
        network = None if setup.network is None else Network(setup.network)
        gate = PolicyGate(slots, setup.actor, network, probes)
        with contextlib.ExitStack() as undo:  # what a failure below must not leave behind
            keys = KeyFolder(Path(setup.keys))
            peer_link = connect(setup.transport, *setup.server, keys, setup.limits)
            undo.callback(peer_link.close)
            outbox = Outbox(
                Path(setup.folder),
                setup.worker,
                setup.incarnations,
                setup.dead,
                setup.outbox,
                epoch_s=setup.epoch_s,
            )
            undo.callback(outbox.close)
            files = PolicyFiles(_path(setup.weights), _path(setup.history), setup.model_history)
            self._role = WorkerRole(outbox, gate, files, setup.condition, tell)
            hello = m.Hello.of_this_process(
                "worker",
                setup.worker,
                setup.incarnations[0],
                spaces=setup.spaces,
                model_file=file_id(_path(setup.weights)),
                takes_over=outbox.takes_over,
            )
            self._session = Session(peer_link, self._role, hello)
            undo.callback(self._session.close, 0.0)
            start_thread(partial(self._listen, messages), "tmrl-link-pipe")
            undo.pop_all()

    def _listen(self, messages: Iterator[ToLink]) -> None:
        for message in messages:
            if isinstance(message, Condition):
                self._role.condition = message
            elif isinstance(message, Fit):
                self._role.fit.append(message.word)
            elif isinstance(message, Hasten):
                self._role.outbox.hasten()
            elif isinstance(message, Leave):
                self._flush_s = message.flush_s
                break
        self._leaving.set()

    def serve(self) -> None:
        """Report the condition, and write policies to disk, until it is time to leave; then send
        what is left.
        """
        role, is_over = self._role, False
        while not is_over:
            self._tell(Status(self._session.connected, role.known()))
            role.files.write()
            is_over = self._leaving.wait(STATUS_EVERY_S) or self._session.failed
        role.outbox.hasten()
        try:
            self._session.check()
            if role.pending():  # the connection may have only just begun
                self._session.wait_connected(self._flush_s)
        except Exception as error:
            self._tell(failure(error))
            self._leaving.wait()
        self._session.close(self._flush_s)
        role.files.write()
        role.outbox.close()
        leave(self._shared)
        self._tell(Left())


def run_link(
    messages: Iterator[ToLink], tell: Callable[[FromLink], object], leaving: threading.Event
) -> None:
    """Run a link from its `Setup` on. The arguments are those of `Link`."""
    setup = next(messages, None)
    if isinstance(setup, Setup):  # else the other side ended before it was ready
        try:
            link = Link(setup, messages, tell, leaving)
        except Exception as error:
            tell(failure(error))
        else:
            link.serve()


def failure(error: BaseException) -> Failed:
    """Return an error in the form in which it reaches the control loops' side. A shortage becomes a
    ShortageError: another link may find what this one lacked.
    """
    if isinstance(error, TmrlLikeError):
        return Failed(type(error).__name__, str(error))
    kind = ShortageError if isinstance(error, MemoryError | OSError) else TmrlLikeError
    return Failed(kind.__name__, f"the link failed: {error!r}")


def _path(text: str) -> Path | None:
    return Path(text) if text else None
