"""The page's connection to a server, and what it answers to browsers."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable

import msgspec

from tmrl_like.delivery.folder import name_of_peer
from tmrl_like.metrics.reading import Record
from tmrl_like.page.history import RunHistory
from tmrl_like.session.session import Session
from tmrl_like.transport import PeerLink
from tmrl_like.wire import messages as m

_LOOKS_EVERY_S = 0.35  # while a browser shows the page
_KEEPS_UP_EVERY_S = 5.0  # otherwise; a server keeps reports for much longer
_SHOWN_FOR_S = 5.0  # after a browser's request
_decoder = msgspec.msgpack.Decoder(m.Sight)


class Watcher:
    """Looks at a server regularly, more often while a browser shows the page (see
    `conversation.Role`).

    Attributes:
        session: keeps the connection; raises the error that ended it.
        history: of the run.
        sight: the newest view of the server; None before the first one.
        seen_at: when that arrived, or this began, `time.monotonic()`.
    """

    def __init__(self, link: PeerLink, title: dict[str, object], records: Iterable[Record]) -> None:
        """Connect, without waiting for the server; `title` is passed to browsers, `records` are
        those known of the run.
        """
        self.history = RunHistory()
        for record in records:
            self.history.add_record(record)
        self.history.incidents.clear()  # records do not say when they happened
        self.sight: m.Sight | None = None
        self._title = {**title, "server": link.where}
        self._view = self._report = 0
        self.seen_at = time.monotonic()
        self._shown_at = self._asked_at = -math.inf
        self._connected = False
        self._workers = b"[]"  # of the newest view, as JSON
        self.session = Session(link, self, m.Hello.of_this_process("watcher", name_of_peer(None)))

    def run(self) -> bytes:
        """Return the run for a browser. Any thread: none changes it while it is encoded."""
        history = self.history
        return msgspec.json.encode(
            {
                **self._title,
                "connected": self._connected,
                "time_s": history.time_s,
                "round": history.round,
                "curves": history.curves,
                "incidents": list(history.incidents),
            }
        )

    def workers(self) -> bytes:
        """Return the newest view's workers for a browser, and look at the server more often for a
        while. Any thread.
        """
        now, shown_before = time.monotonic(), self._shown_at
        self._shown_at = now  # before it wakes up, else it would sleep on
        if now - shown_before >= _SHOWN_FOR_S:
            self.session.wake()
        return msgspec.json.encode(
            {"age_s": now - self.seen_at, "workers": msgspec.Raw(self._workers)}
        )

    # -- the connection's thread -------------------------------------------------------------------

    def on_welcome(self, welcome: m.Welcome, is_new: bool) -> None:
        """Begin with the first report of a new server, since each counts its own from 1."""
        if is_new:
            self._report = 0

    def on_message(self, message: m.AnyMessage, body: memoryview, data: bytes | memoryview) -> None:
        """Take a view of the server."""
        if not isinstance(message, m.View):
            return
        self._view, self._report = message.number, message.report
        sight = self.sight = _decoder.decode(body)
        self.seen_at = time.monotonic()
        for report in sight.reports:
            with contextlib.suppress(
                ValueError, TypeError, AttributeError, KeyError, OverflowError
            ):  # a malformed report
                self.history.add_record(msgspec.json.decode(report))
        self.history.see(sight.trainers, [beat for _, beat in sight.workers])
        self._workers = msgspec.json.encode(
            [described(age_s, beat) for age_s, beat in sight.workers]
        )

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        """Request a view if one is due."""
        now = time.monotonic()
        if connected != self._connected:
            self._connected = connected
            if connected:
                self.history.tell("good", "connected to the server")
            else:
                self.history.tell("bad", "no server answers")
        is_shown = now - self._shown_at < _SHOWN_FOR_S
        every_s = _LOOKS_EVERY_S if is_shown else _KEEPS_UP_EVERY_S
        if not connected:
            return every_s
        if now - self._asked_at >= every_s and send(m.encode(m.Look(self._view, self._report))):
            self._asked_at = now
        return max(0.01, min(every_s, self._asked_at + every_s - now))

    def pending(self) -> bool:
        return False

    def beat(self) -> m.Beat:
        return m.Beat()


def described(age_s: float, beat: m.Beat) -> dict[str, object]:
    """Return a worker's condition as browsers receive it."""
    return {
        "worker": beat.worker,
        "age_s": age_s,
        "at_s": beat.at_s,
        **msgspec.structs.asdict(beat.condition),
    }
