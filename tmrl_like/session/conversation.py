"""The peer's side of the protocol: introduce the peer, send heartbeats, pass messages to its
role.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from tmrl_like.base.budgets import Buckets
from tmrl_like.errors import CredentialsError, DecodingError, RefusedError
from tmrl_like.session.ring import Ring, unknown_host
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.session")

_HELLO_EVERY_S = 1.0
_BEAT_S = 0.5
_UNSENT_HELLO_AGAIN_S = 0.05
_COMPLAIN_AFTER_S = 3.0  # per server
_PATIENCE_S, _MAX_PATIENCE_S = 2.5, 15.0  # with a silent server
_REDIAL_S = 0.5  # at least, between two dials
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
    conversation continues with the next server of its ring. A permanent refusal ends it; a refused
    key ends it only when all servers have refused the key.

    Attributes:
        ring: the servers.
        welcomed: set while the server has let this peer in and still answers.
    """

    def __init__(self, ring: Ring, role: Role, hello: m.Hello, clock: Callable[[], float]) -> None:
        """Prepare the conversation, without sending anything; `clock` is monotonic, in seconds."""
        self.ring = ring
        self.welcomed = threading.Event()
        self._role = role
        self._hello = hello
        self._clock = clock
        now = clock()
        self._dialled_at = self._heard_at = now  # of the current server
        self._answered_at = now  # when any server last sent a message
        self._touch_at = self._hello_at = now  # when to look after the connection, and say hello
        self._patience_s = _PATIENCE_S
        self._said_hello = False
        self._is_refused = False  # by the current server, until `_hello_at`
        self._refused_by: set[str] = set()  # servers that refuse the key
        self._refusals = Buckets(1, 1 / _REFUSAL_AGAIN_S)  # by reason: limits log lines
        self._has_complained = False

    def turn(self, wait_s: float) -> float:
        """Handle messages that arrive within `wait_s`, then let the role send.

        Returns the longest time in seconds that the next turn may wait.

        Raises:
            RefusedError, CredentialsError: this peer may not take part.
        """
        messages = 0
        data = self._receive(wait_s)
        now = self._clock()
        while data is not None:
            self._heard_at = self._answered_at = now
            self._dispatch(data, now)
            messages += 1
            data = self._receive(0.0) if messages < _MESSAGES_PER_TURN else None
        if now >= self._touch_at:
            self._stay_in_touch(now)
        next_s = self._role.on_tick(self.ring.link.send, self.welcomed.is_set())
        return 0.0 if messages == _MESSAGES_PER_TURN else min(next_s, self._touch_at - now)

    def end(self, flush_s: float) -> None:
        """Send pending messages for at most `flush_s` seconds, then say goodbye."""
        until = self._clock() + flush_s
        while self.welcomed.is_set() and self._clock() < until:
            self._role.on_tick(self.ring.link.send, True)
            if not self._role.pending():
                break
            data = self.ring.link.receive(_TICK_S)
            if data is not None:
                self._dispatch(data, self._clock())
        self.ring.link.send(m.encode(self._role.beat()))
        self.ring.link.send(m.encode(m.Bye()))

    # messages from the server

    def _receive(self, wait_s: float) -> bytes | memoryview | None:
        try:
            return self.ring.link.receive(wait_s)
        except CredentialsError as error:
            self._refused_by.add(self.ring.where)
            if len(self._refused_by) == len(self.ring.addresses):
                raise
            self._warn_once(str(error), "trying the other servers")
            self._give_up("refuses this machine's key", self._clock())
            return None

    def _dispatch(self, data: bytes | memoryview, now: float) -> None:
        try:
            message, body = m.decode(data)
        except m.WireVersionError as error:
            where = self.ring.where
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
        if not self.welcomed.is_set() and not self.ring.is_quiet:
            log.info("connected to the server at %s as %s", self.ring.where, self._hello.name)
        self._has_complained = self._is_refused = False
        self._refused_by.clear()
        self.welcomed.set()
        self._role.on_welcome(welcome, is_new)

    def _on_refusal(self, refusal: m.Refusal, now: float) -> None:
        if refusal.retry_after_s < 0:
            raise RefusedError(refusal.reason)
        self._warn_once(refusal.reason, f"trying again every {refusal.retry_after_s:.0f} s")
        self.welcomed.clear()
        self._is_refused = True
        # the server does not count as silent until then
        self._hello_at = self._heard_at = self._answered_at = now + refusal.retry_after_s

    def _warn_once(self, reason: str, what_follows: str) -> None:
        if self._refusals.take(reason, 1, self._clock()):
            log.warning("%s; %s", reason, what_follows)

    # messages that the peer sends on its own

    def _stay_in_touch(self, now: float) -> None:
        self._touch_at = now + _BEAT_S
        silent_s = now - self._heard_at
        if silent_s > self._patience_s:
            # the link may be busy with a policy
            is_slow = now - self._dialled_at < _FLAPS_WITHIN_S
            self._patience_s = (
                min(1.5 * self._patience_s, _MAX_PATIENCE_S) if is_slow else _PATIENCE_S
            )
            self._give_up(f"has been silent for {silent_s:.1f} s", now)
        elif self.ring.link.is_lost and now - self._dialled_at > _REDIAL_S:
            self._give_up("is lost", now)
        elif self._is_refused and now >= self._hello_at:
            self._give_up("refuses this peer for now", now)
        elif self.welcomed.is_set():
            self.ring.link.send(m.encode(self._role.beat()))
        elif now >= self._hello_at:
            self._say_hello(now)
        self._complain(now)

    def _give_up(self, why: str, now: float) -> None:
        """Switch to the next server, or stay with the same one if it is the only one."""
        left, was_welcome = self.ring.where, self.welcomed.is_set()
        self.welcomed.clear()
        self._is_refused = False
        self.ring.move_on(m.encode(m.Bye()))
        self._dialled_at = self._heard_at = now
        if was_welcome and not self.ring.is_quiet:
            is_alone = self.ring.where == left
            what_follows = (
                "waiting for it" if is_alone else f"dialling the one at {self.ring.where}"
            )
            log.warning("the server at %s %s: %s", left, why, what_follows)
        self._say_hello(now)

    def _say_hello(self, now: float) -> None:
        self._hello_at = now + _HELLO_EVERY_S
        self._said_hello = True
        is_sent = self.ring.link.send(m.encode(self._hello))
        if not is_sent:  # some transports need a connection first
            self._hello_at = self._touch_at = now + _UNSENT_HELLO_AGAIN_S

    def _complain(self, now: float) -> None:
        """Log once that no server answers, after each has had time to."""
        servers = self.ring.addresses
        if self._has_complained or self.ring.is_quiet or self.welcomed.is_set():
            return
        if now - self._answered_at > _COMPLAIN_AFTER_S * len(servers):
            self._has_complained = True
            why = (
                unknown_host(servers)
                or "is `tmrl-like server` running there, with its keys unchanged?"
            )
            log.warning("no server answers at %s: %s Still trying", ", ".join(servers), why)
