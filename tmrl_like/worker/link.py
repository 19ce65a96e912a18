"""A worker's half of the conversation with the server, in the connection's thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.policies.intake import PolicyFiles, PolicyIntake
from tmrl_like.wire import messages as m
from tmrl_like.worker.control_loop import ControlLoop

_TICK_S = 0.01
_REFILL_S = 0.2


class WorkerRole:
    """Sends what the control loop left in the outbox, has new weights ready for it (see `session.Role`)."""

    def __init__(
        self, loop: ControlLoop, samples: SampleLog, outbox: Outbox, intake: PolicyIntake, files: PolicyFiles
    ) -> None:
        self._loop = loop
        self._samples = samples
        self._refill_at = 0.0
        self._outbox = outbox
        self._intake = intake
        self._files = files
        self._feed = 0
        self._policy_received = 0
        self._beat_is_due = False

    def on_welcome(self, welcome: m.Welcome, is_new: bool) -> None:
        """Send again what may be lost: to another trainer perhaps, or because a connection broke."""
        if welcome.feed != self._feed:
            self._outbox.retransmit(from_the_start=True)
        elif is_new:
            self._outbox.retransmit(from_the_start=False)
        self._feed = welcome.feed

    def on_message(self, message: m.AnyMessage, body: memoryview) -> None:
        """Acknowledgements, dismissals of what earlier processes left, and policies."""
        if isinstance(message, m.PolicyFrame):
            self._on_policy_frame(message, body)
        elif isinstance(message, m.Ack):
            self._outbox.on_ack(message)
        elif isinstance(message, m.Dismissal):
            self._outbox.set_aside(message.incarnation, message.reason)

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        if self._beat_is_due and connected:
            self._beat_is_due = not send(m.encode(self.beat()))
        if time.monotonic() > self._refill_at:
            self._refill_at = time.monotonic() + _REFILL_S
            self._samples.refill()
        self._outbox.pump(send, may_send=connected and self._feed != 0)
        return _TICK_S

    def pending(self) -> bool:
        return self._feed != 0 and self._outbox.pending()

    def beat(self) -> m.Beat:
        loop = self._loop
        return m.Beat(
            worker=self._outbox.worker,
            policy_version=loop.policy_version,
            policy_age_s=time.time() - loop.policy_published_at_s if loop.policy_published_at_s else 0.0,
            policy_received=self._policy_received,
            env_steps=loop.env_steps,
            overruns=loop.overruns,
            unacknowledged_samples=self._outbox.unacknowledged_samples(),
            expert=loop.expert,
            lost_samples=self._outbox.lost_samples,
            alarm="; ".join(
                filter(None, (self._intake.alarm, loop.dead_man.alarm, self._samples.alarm, self._outbox.alarm))
            ),
            safe_steps=loop.dead_man.safe_steps,
            env_faults=loop.env.faults,
            env_rebuilds=loop.env.rebuilds,
            ended=loop.ended,
        )

    def _on_policy_frame(self, frame: m.PolicyFrame, body: memoryview) -> None:
        if frame.index == frame.frames - 1:
            self._policy_received = frame.version
            self._beat_is_due = True
        if self._loop.expert:
            return
        weights = self._intake.add(frame, body)
        if weights is not None:
            self._files.save(frame.version, weights)
