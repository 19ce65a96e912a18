"""The page's connection to a server, and what it sends to browsers."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from tmrl_like.delivery.folder import name_of_peer
from tmrl_like.metrics.reading import Record
from tmrl_like.page.history import RunHistory
from tmrl_like.session.session import Session
from tmrl_like.transport import PeerLink
from tmrl_like.types import LATENESS_EDGES_S
from tmrl_like.wire import messages as m

_LOOKS_EVERY_S = 0.35  # while a browser shows the page
_KEEPS_UP_EVERY_S = 5.0  # otherwise; a server keeps reports for much longer
_TELLS_OF_RUN_EVERY_S = 3.0
_decoder = msgspec.msgpack.Decoder(m.Sight)


class Browser:
    """The newest waiting event of each kind for one browser; iterates over server-sent events until
    `end`.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._is_over = False

    def put(self, kind: str, data: bytes) -> None:
        """Queue the event of this kind; `data` is one line."""
        with self._changed:
            self._waiting[kind] = data
            self._changed.notify()

    def end(self) -> None:
        """End the iteration, so that nothing more is sent."""
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_over)
                if self._is_over:
                    return
                waiting, self._waiting = self._waiting, {}
            for kind, data in waiting.items():
                yield b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


class Watcher:
    """Looks at a server regularly, more often while a browser shows the page (see
    `conversation.Role`).

    Browsers receive, as JSON, the "workers" a few times a second and the "run" every few seconds.

    Attributes:
        session: keeps the connection; raises the error that ended it.
        history: of the run.
        sight: the newest view of the server; None before the first one.
        seen_at: when that arrived, `time.monotonic()`.
        browsers: the connected ones; the code that serves the page adds and removes them.
    """

    def __init__(self, link: PeerLink, title: dict[str, Any], records: Iterable[Record]) -> None:
        """Connect, without waiting for the server; `title` is passed to browsers, `records` are
        those known of the run.
        """
        self.history = RunHistory()
        for record in records:
            self.history.add_record(record)
        self.history.incidents.clear()  # records do not say when they happened
        self.sight: m.Sight | None = None
        self.browsers: set[Browser] = set()
        self._title = {
            **title,
            "server": link.where,
            "late_edges_s": LATENESS_EDGES_S,
        }
        self._view = self._report = 0
        self.seen_at = self._asked_at = self._told_at = -math.inf
        self._was_connected = False
        self.session = Session(link, self, m.Hello.of_this_process("watcher", name_of_peer(None)))

    def welcome(self, browser: Browser) -> None:
        """Add a browser, and look at the server now. Any thread."""
        self.browsers.add(browser)
        self._asked_at = -math.inf
        self._told_at = -math.inf
        self.session.wake()

    def _tell(self, kind: str, content: object) -> None:
        if self.browsers:
            data = msgspec.json.encode(content)
            for browser in list(self.browsers):
                browser.put(kind, data)

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
        self._tell("workers", [described(age_s, beat) for age_s, beat in sight.workers])

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        """Request a view if one is due, and send the run to browsers."""
        now = time.monotonic()
        if connected != self._was_connected:
            self._was_connected = connected
            self._told_at = -math.inf
            if connected:
                self.history.tell("good", "connected to the server")
            else:
                self.history.tell("bad", "no server answers")
        if self.browsers and now - self._told_at >= _TELLS_OF_RUN_EVERY_S:
            self._told_at = now
            self._tell("run", self._run(connected))
        every_s = _LOOKS_EVERY_S if self.browsers else _KEEPS_UP_EVERY_S
        if not connected:
            return every_s
        if now - self._asked_at >= every_s and send(m.encode(m.Look(self._view, self._report))):
            self._asked_at = now
        return max(0.01, min(every_s, self._asked_at + every_s - now))

    def pending(self) -> bool:
        return False

    def beat(self) -> m.Beat:
        return m.Beat()

    def _run(self, connected: bool) -> dict[str, Any]:
        history = self.history
        return {
            **self._title,
            "connected": connected,
            "time_s": history.time_s,
            "round": history.round,
            "curves": {name: curve.columns() for name, curve in history.curves.items()},
            "incidents": list(history.incidents),
        }


def described(age_s: float, beat: m.Beat) -> dict[str, Any]:
    """Return a worker's condition as browsers receive it."""
    return {
        "worker": beat.worker,
        "age_s": age_s,
        "at_s": beat.at_s,
        **msgspec.structs.asdict(beat.condition),
    }
