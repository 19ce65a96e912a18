"""The peer's side of the protocol: introduce the peer, send heartbeats, pass messages to its
role.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from tmrl_like.base.budgets import Buckets
from tmrl_like.errors import DecodingError, RefusedError
from tmrl_like.transport.addresses import unknown_host
from tmrl_like.transport.base import PeerLink
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.session")

_HELLO_EVERY_S = 1.0
_BEAT_S = 0.5
_UNSENT_HELLO_AGAIN_S = 0.05
_COMPLAIN_AFTER_S = 3.0
_PATIENCE_S, _MAX_PATIENCE_S = 2.5, 15.0  # with a silent server
_LOST_AFTER_S = 0.5  # the link may find the server again
_FLAPS_WITHIN_S = 60.0
_REFUSAL_AGAIN_S = 60.0
_TICK_S = 0.01
_MESSAGES_PER_TURN = 64


class Role(Protocol):
    """What a worker or a trainer does with its connection; called in the connection's thread."""

    def on_welcome(self, welcome: m.Welcome, is_new: bool) -> None:
        """Handle a welcome: the server let this peer in, or another trainer has taken over.

        `is_new`: this is the first welcome on a new connection.
        """

    def on_message(self, message: m.AnyMessage, body: memoryview, data: bytes | memoryview) -> None:
        """Handle a message for this role; `data` is the whole message, as it arrived."""

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        """Send pending messages, and return the longest time in seconds until the next call."""

    def pending(self) -> bool:
        """Whether anything is still to be sent or acknowledged; a clean exit waits for it a
        moment.
        """

    def beat(self) -> m.Beat:
        """Return a heartbeat with this peer's condition."""


class Conversation:
    """The protocol between a peer and its server. It has no thread: its owner calls `turn`
    repeatedly.

    If the connection is lost, or the server is silent or refuses this peer for now, the
    conversation waits for it: the link dials again by itself. A permanent refusal or a refused key
    ends it.

    Attributes:
        welcomed: set while the server has let this peer in and still answers.
    """

    def __init__(
        self, link: PeerLink, role: Role, hello: m.Hello, clock: Callable[[], float]
    ) -> None:
        """Prepare the conversation, without sending anything; `clock` is monotonic, in seconds."""
        self.welcomed = threading.Event()
        self._link = link
        self._role = role
        self._hello = hello
        self._clock = clock
        now = clock()
        self._gave_up_at = now  # when the server last counted as gone
        self._heard_at = now  # what the server's silence counts from
        self._answered_at = now  # when the server last sent a message
        self._touch_at = self._hello_at = now  # when to look after the connection, and say hello
        self._patience_s = _PATIENCE_S
        self._said_hello = False
        self._refusals = Buckets(1, 1 / _REFUSAL_AGAIN_S)  # by reason: limits log lines
        self._has_complained = False

    def turn(self, wait_s: float) -> float:
        """Handle messages that arrive within `wait_s`, then let the role send.

        Returns the longest time in seconds that the next turn may wait.

        Raises:
            RefusedError, CredentialsError: this peer may not take part.
        """
        messages = 0
        data = self._link.receive(wait_s)
        now = self._clock()
        while data is not None:
            self._heard_at = self._answered_at = now
            self._dispatch(data, now)
            messages += 1
            data = self._link.receive(0.0) if messages < _MESSAGES_PER_TURN else None
        if now >= self._touch_at:
            self._stay_in_touch(now)
        next_s = self._role.on_tick(self._link.send, self.welcomed.is_set())
        return 0.0 if messages == _MESSAGES_PER_TURN else min(next_s, self._touch_at - now)

    def end(self, flush_s: float) -> None:
        """Send pending messages for at most `flush_s` seconds, then say goodbye."""
        until = self._clock() + flush_s
        while self.welcomed.is_set() and self._clock() < until:
            self._role.on_tick(self._link.send, True)
            if not self._role.pending():
                break
            data = self._link.receive(_TICK_S)
            if data is not None:
                self._dispatch(data, self._clock())
        self._link.send(m.encode(self._role.beat()))
        self._link.send(m.encode(m.Bye()))

    # messages from the server

    def _dispatch(self, data: bytes | memoryview, now: float) -> None:
        try:
            message, body = m.decode(data)
        except m.WireVersionError as error:
            where = self._link.where
            raise RefusedError(
                f"the server at {where} speaks {error}: upgrade the older of the two"
            ) from None
        except DecodingError as error:
            log.warning("the server sent something that is not a message: %s", error)
            return
        if isinstance(message, m.Welcome):
            self._on_welcome(message)
        elif isinstance(message, m.HelloWanted):
            self.welcomed.clear()
            self._say_hello(now)
        elif isinstance(message, m.Refusal):
            self._on_refusal(message, now)
        elif not isinstance(message, m.Beat) or message.worker:
            self._role.on_message(message, body, data)

    def _on_welcome(self, welcome: m.Welcome) -> None:
        is_new, self._said_hello = self._said_hello, False
        if not self.welcomed.is_set() and not self._link.logs_itself:
            log.info("connected to the server at %s as %s", self._link.where, self._hello.name)
        self._has_complained = False
        self.welcomed.set()
        self._role.on_welcome(welcome, is_new)

    def _on_refusal(self, refusal: m.Refusal, now: float) -> None:
        if refusal.retry_after_s < 0:
            raise RefusedError(refusal.reason)
        if self._refusals.take(refusal.reason, 1, now):
            log.warning("%s; trying again every %.0f s", refusal.reason, refusal.retry_after_s)
        self.welcomed.clear()
        # the server does not count as silent until then
        self._hello_at = self._heard_at = self._answered_at = now + refusal.retry_after_s

    # messages that the peer sends on its own

    def _stay_in_touch(self, now: float) -> None:
        self._touch_at = now + _BEAT_S
        silent_s = now - self._heard_at
        if silent_s > self._patience_s:
            # the link may be busy with a policy
            is_slow = now - self._gave_up_at < _FLAPS_WITHIN_S
            self._patience_s = (
                min(1.5 * self._patience_s, _MAX_PATIENCE_S) if is_slow else _PATIENCE_S
            )
            self._give_up(f"has been silent for {silent_s:.1f} s", now)
        elif self._link.is_lost and now - self._gave_up_at > _LOST_AFTER_S:
            self._give_up("is lost", now)
        elif self.welcomed.is_set():
            self._link.send(m.encode(self._role.beat()))
        elif now >= self._hello_at:
            self._say_hello(now)
        self._complain(now)

    def _give_up(self, why: str, now: float) -> None:
        """Take the server for gone until it answers another hello."""
        if self.welcomed.is_set() and not self._link.logs_itself:
            log.warning("the server at %s %s: waiting for it", self._link.where, why)
        self.welcomed.clear()
        self._gave_up_at = self._heard_at = now
        self._say_hello(now)

    def _say_hello(self, now: float) -> None:
        self._hello_at = now + _HELLO_EVERY_S
        self._said_hello = True
        is_sent = self._link.send(m.encode(self._hello))
        if not is_sent:  # some transports need a connection first
            self._hello_at = self._touch_at = now + _UNSENT_HELLO_AGAIN_S

    def _complain(self, now: float) -> None:
        """Log once that the server does not answer, after it has had time to."""
        if self._has_complained or self._link.logs_itself or self.welcomed.is_set():
            return
        if now - self._answered_at > _COMPLAIN_AFTER_S:
            self._has_complained = True
            where = self._link.where
            why = (
                unknown_host(where)
                or "is `tmrl-like server` running there, with its keys unchanged?"
            )
            log.warning("no server answers at %s: %s Still trying", where, why)
