"""A peer's side of the wire: introduces itself, stays in touch, and hands messages to its role.

One thread per process owns the connection. The role (worker, trainer) plugs in as a `Role`; whatever it
does in these calls happens in that thread, beside the control loop and the training.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import platform
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import tmrl_like
from tmrl_like.base import clocks
from tmrl_like.base.budgets import Buckets
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.errors import CredentialsError, DecodingError, RefusedError, ShortageError, TmrlLikeError, expect
from tmrl_like.transport.base import PeerLink
from tmrl_like.transport.ring import RingLink, unknown_host
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.link")

_HELLO_EVERY_S = 1.0
_BEAT_S = 0.5
_UNSENT_HELLO_AGAIN_S = 0.05
_SILENT_AFTER_S = 4.0
_COMPLAIN_AFTER_S = 3.0
_PATIENCE_S, _MAX_PATIENCE_S = 2.5, 15.0  # with a server that is silent, where there are others
_REDIAL_S = 0.5  # at least between two of them
_FLAPS_WITHIN_S = 60.0
_REFUSAL_AGAIN_S = 60.0
_TICK_S = 0.01
_MESSAGES_PER_TURN = 64
_SECONDS_OF_A_TURN = 0.01


class Role(Protocol):
    """What a worker or a trainer does on the wire."""

    def on_welcome(self, welcome: m.Welcome, is_new: bool) -> None:
        """The server let us in (`is_new`: on a new connection), or the trainer at the other end changed."""

    def on_message(self, message: m.AnyMessage, body: memoryview) -> None:
        """A message for this role."""

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        """Send what waits; returns after how many seconds at most to be called again."""

    def pending(self) -> bool:
        """Whether something is still to be sent or acknowledged; a clean leave waits a moment for it."""

    def beat(self) -> m.Beat:
        """This peer's condition."""


class Session:
    """Keeps one peer connected to one server. All errors that end it surface in `check`.

    Over a `RingLink` it leaves a server whose connection is lost, that is silent, or that refuses it for now, and dials
    the next one. What a server refuses for good ends it; a key, when all servers have refused it.

    Attributes:
        takes_turns: it has no thread of its own, and its owner calls `turn`. Its time passes by turns, or is that of
            its link's `clock`.
    """

    def __init__(
        self,
        link: PeerLink,
        where: str,
        role: Role,
        role_name: str,
        name: str,
        spaces: m.Spaces | None = None,
        model_path: Path | None = None,
        incarnation: int = 0,
        takes_over: tuple[int, ...] = (),
        rank: m.Rank = m.ALONE,
        run: str = "",
    ) -> None:
        """Start the thread and introduce the peer; does not wait for the server.

        Args:
            link: an open connection; closed by `close`.
            where: the server's address, for messages to the user; a `RingLink` knows it.
            role: what to do with messages.
            role_name: "worker", "trainer" or "watcher".
            name: unique among live peers of the role.
            spaces: compared between worker and trainer.
            model_path: where this peer keeps its weights; two peers of one machine must not share it.
            incarnation: names this process; 0: a random number.
            takes_over: incarnations of this name that are dead, whose packets this one sends as well.
            rank: which of several trainers it is.
            run: the training that it goes on with.

        Raises:
            ConfigError: the name is too long, or not one line of printable characters.
            ShortageError: there is no thread for it; the link is closed.
        """
        is_a_name = len(name) <= m.MAX_NAME and one_line(name) == name
        expect(is_a_name, "name", name, f"one line of at most {m.MAX_NAME} printable characters")
        self.incarnation = incarnation or secrets.randbits(62) + 1
        self.name = name
        self._link = link
        self._ring = link if isinstance(link, RingLink) else None
        self._where = self._ring.where if self._ring else where
        self._role = role
        about = (spaces, _file_id(model_path), takes_over, rank, run, clocks.up_s())
        self._hello = m.Hello(role_name, name, self.incarnation, tmrl_like.__version__, *about)
        self._stopping = threading.Event()
        self._flush_s = 0.0
        self._failure: BaseException | None = None
        self._welcomed = threading.Event()
        self.takes_turns = getattr(link, "takes_turns", False)
        self._says = not getattr(link, "says_itself", False)
        turns = itertools.count(1)
        by_turns = (lambda: next(turns) * _SECONDS_OF_A_TURN) if self.takes_turns else time.monotonic
        self._clock: Callable[[], float] = getattr(link, "clock", by_turns)
        self._heard_at = self._dialled_at = self._clock()
        self._patience_s = _PATIENCE_S
        self._leave_at = math.inf  # the server, which refuses this peer for now
        self._unanswered = 0  # servers that were dialled in vain
        self._refused_by: set[str] = set()  # servers that do not take the key
        self._hello_at = -1e9
        self._beat_at = -1e9
        self._refusals = Buckets(1, 1 / _REFUSAL_AGAIN_S)  # by reason: one line each
        self._complained = False
        self._said_hello = False
        self._hello_waits = False  # for a connection: some transports take nothing before there is one
        try:
            self._thread = None if self.takes_turns else start_thread(self._run, f"tmrl-link-{role_name}")
        except ShortageError:
            link.close()
            raise

    @property
    def connected(self) -> bool:
        """Whether the server let this peer in and still answers."""
        return self._welcomed.is_set()

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait until the server let this peer in; raises what it refused it for."""
        until = time.monotonic() + timeout_s
        while not self._welcomed.wait(0.05) and time.monotonic() < until:
            self.check()
        self.check()
        return self._welcomed.is_set()

    def check(self) -> None:
        """Raise what ended this session, if anything did.

        Raises:
            RefusedError, CredentialsError: the server said no, or the key is wrong.
            Exception: whatever else broke the thread.
        """
        if self._failure is not None:
            raise self._failure

    @property
    def thread_id(self) -> int:
        """Native id of the connection's thread."""
        return (self._thread and self._thread.native_id) or 0

    @property
    def failed(self) -> bool:
        """Whether something ended this session; `check` raises it."""
        return self._failure is not None

    def wake(self) -> None:
        """Have `Role.on_tick` called soon. Any thread."""
        self._link.wake()

    def close(self, flush_s: float = 1.0) -> None:
        """Send what waits (for at most `flush_s`), say goodbye, close. Twice is fine."""
        if not self._stopping.is_set():
            self._flush_s = flush_s
            self._stopping.set()
            self._link.wake()
        if self._thread is None:
            self._flush_s = 0.0  # nobody answers meanwhile
            self._run()
        elif threading.current_thread() is not self._thread:
            self._thread.join(flush_s + 2.0)

    def turn(self) -> None:
        """Take what has arrived, and let the role send; for the owner of one that `takes_turns`."""
        try:
            self._turn(0.0)
        except BaseException as error:
            self._fail(error)
            raise

    def _run(self) -> None:
        try:
            wait_s = 0.0
            while not self._stopping.is_set():
                wait_s = self._turn(wait_s)
            self._say_goodbye()
        except BaseException as error:
            self._fail(error)
        finally:
            self._welcomed.clear()
            self._link.close()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        if isinstance(error, TmrlLikeError):
            if self._says:
                log.error("the connection to the server at %s ends: %s", self._where, error)
        else:
            is_short = isinstance(error, MemoryError)
            line = "the connection's thread has no memory left" if is_short else "the connection's thread failed"
            log.error("%s", line, exc_info=None if is_short else error)

    def _turn(self, wait_s: float) -> float:
        """Take what has arrived, let the role send; returns how long the next turn may wait."""
        messages = 0
        data = self._receive(wait_s)
        now = self._clock()
        while data is not None:
            self._heard_at = now
            self._dispatch(data, now)
            messages += 1
            data = self._receive(0.0) if messages < _MESSAGES_PER_TURN else None
        if now - self._beat_at > (_UNSENT_HELLO_AGAIN_S if self._hello_waits else _BEAT_S):
            self._stay_in_touch(now)
        next_s = self._role.on_tick(self._link.send, self._welcomed.is_set())
        return 0.0 if messages == _MESSAGES_PER_TURN else min(next_s, _BEAT_S)

    def _receive(self, wait_s: float) -> bytes | memoryview | None:
        try:
            return self._link.receive(wait_s)
        except CredentialsError as error:
            self._refused_by.add(self._where)
            if self._ring is None or len(self._refused_by) == len(self._ring.addresses):
                raise
            now = self._clock()
            if self._refusals.take(str(error), 1, now):
                log.error("%s; trying the other servers", error)
            self._move_on(self._ring, now)
            return None

    def _move_on(self, ring: RingLink, now: float) -> None:
        """Leave the server, and dial the next one."""
        left, why = self._where, "is lost" if ring.is_lost else "was left"
        if now - self._heard_at > self._patience_s:
            flaps = now - self._dialled_at < _FLAPS_WITHIN_S  # a slow link, perhaps, on which a policy arrives
            self._patience_s = min(1.5 * self._patience_s, _MAX_PATIENCE_S) if flaps else _PATIENCE_S
            why = f"has been silent for {now - self._heard_at:.1f} s"
        self._unanswered = self._unanswered + 1 if self._heard_at == self._dialled_at else 0
        was_welcome = self._welcomed.is_set()
        if was_welcome:
            self._link.send(m.encode(m.Bye()))
        self._welcomed.clear()
        ring.move_on()
        self._where, self._leave_at = ring.where, math.inf
        self._dialled_at = self._heard_at = now
        if was_welcome:
            log.warning("the server at %s %s: dialling the one at %s", left, why, self._where)
        self._say_hello(now)

    def _dispatch(self, data: bytes | memoryview, now: float) -> None:
        try:
            message, body = m.decode(data)
        except m.WireVersionError as error:
            raise RefusedError(f"the server at {self._where} speaks {error}: upgrade the older of the two") from None
        except DecodingError as error:
            log.warning("the server sent something that is not a message: %s", error)
            return
        if isinstance(message, m.Welcome):
            self._on_welcome(message)
        elif isinstance(message, m.HelloWanted):
            self._welcomed.clear()
            self._say_hello(now)
        elif isinstance(message, m.Refusal):
            self._on_refusal(message, now)
        elif not isinstance(message, m.Beat) or message.worker:
            self._role.on_message(message, body)

    def _on_welcome(self, welcome: m.Welcome) -> None:
        is_new, self._said_hello = self._said_hello, False
        if not self._welcomed.is_set() and self._says:
            log.info("connected to the server at %s as %s", self._where, self.name)
        self._complained, self._unanswered, self._leave_at = False, 0, math.inf
        self._refused_by.clear()
        self._welcomed.set()
        self._role.on_welcome(welcome, is_new)

    def _on_refusal(self, refusal: m.Refusal, now: float) -> None:
        if refusal.retry_after_s < 0:
            raise RefusedError(refusal.reason)
        if self._refusals.take(refusal.reason, 1, now):
            log.warning("%s; trying again every %.0f s", refusal.reason, refusal.retry_after_s)
        self._welcomed.clear()
        self._hello_at = now + refusal.retry_after_s - _HELLO_EVERY_S
        self._leave_at = now + refusal.retry_after_s

    def _stay_in_touch(self, now: float) -> None:
        self._beat_at = now
        silent_s = now - self._heard_at
        if self._ring:
            is_lost = self._ring.is_lost and now - self._dialled_at > _REDIAL_S
            if is_lost or now >= self._leave_at or silent_s > self._patience_s:
                self._move_on(self._ring, now)
                return
        if self._welcomed.is_set() and silent_s > _SILENT_AFTER_S:
            if self._says:
                log.warning("the server at %s has been silent for %.0f s; waiting for it", self._where, silent_s)
            self._welcomed.clear()
        if self._welcomed.is_set():
            self._link.send(m.encode(self._role.beat()))
            return
        if now - self._hello_at > _HELLO_EVERY_S or self._hello_waits:
            self._say_hello(now)
        all_of_them = self._ring.addresses if self._ring else (self._where,)
        if self._leave_at < math.inf:  # it refuses, which is an answer
            silent_s = min(silent_s, now - self._leave_at)
        is_away = self._unanswered >= len(all_of_them) if self._ring else silent_s > _COMPLAIN_AFTER_S
        if is_away and not self._complained and self._says:
            self._complained, where = True, ", ".join(all_of_them)
            why = unknown_host(all_of_them) or "is `tmrl-like server` running there?"
            log.warning("no server answers at %s: %s Trying on", where, why)

    def _say_hello(self, now: float) -> None:
        self._hello_at = now
        self._said_hello = True
        self._hello_waits = not self._link.send(m.encode(self._hello))

    def _say_goodbye(self) -> None:
        if self.takes_turns:
            self._role.on_tick(self._link.send, self._welcomed.is_set())
        until = time.monotonic() + self._flush_s
        while self._welcomed.is_set() and time.monotonic() < until:
            self._role.on_tick(self._link.send, True)
            if not self._role.pending():
                break
            data = self._link.receive(_TICK_S)
            if data is not None:
                self._dispatch(data, time.monotonic())
        self._link.send(m.encode(self._role.beat()))
        self._link.send(m.encode(m.Bye()))


def _file_id(path: Path | None) -> str:
    """Names a file of this machine without telling its path."""
    if path is None:
        return ""
    text = f"{platform.node()}|{uuid.getnode()}|{path.resolve()}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
