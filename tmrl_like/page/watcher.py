"""The watcher: the page's side of the wire, and what it tells browsers."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from tmrl_like.delivery.folder import new_name
from tmrl_like.delivery.session import Session
from tmrl_like.metrics.reading import Record
from tmrl_like.page.figures import Figures
from tmrl_like.transport.base import PeerLink
from tmrl_like.types import LATENESS_EDGES_S
from tmrl_like.wire import messages as m

FIELDS = ("", *m.Beat.__struct_fields__)
"""What the items of a beat are in an event: behind its type's name, the fields."""

_LOOKS_EVERY_S = 0.35  # while somebody looks at the page
_KEEPS_UP_EVERY_S = 5.0  # else: a server keeps the reports of much longer
_LOOKED_AT_FOR_S = 3.0  # after a request
_TELLS_OF_RUN_EVERY_S = 3.0
_COMPARES_EVERY_S = 0.9  # what workers say
_decoder = msgspec.msgpack.Decoder(m.Sight)


class Browser:
    """What waits for one browser, of each kind the newest; an iterator of server-sent events, until `end`."""

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._is_over = False

    def put(self, kind: str, data: bytes) -> None:
        """Let it have something, one line."""
        with self._changed:
            self._waiting[kind] = data
            self._changed.notify()

    def end(self) -> None:
        """Let it have nothing more."""
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
    """Looks at a server, often while somebody looks at the page (see `session.Role`).

    Browsers are told, in JSON, of the "workers" a few times a second, as the server says it, and of the "run" every few
    seconds.

    Attributes:
        session: keeps the connection; raises what ended it.
        figures: of the run.
        sight: the newest; None: there was none yet.
        seen_at: when that came, `time.monotonic()`.
        browsers: those who look; what serves the page adds and removes them.
    """

    def __init__(self, link: PeerLink, where: str, title: dict[str, Any], records: Iterable[Record]) -> None:
        """Connect, without waiting for the server; `title` is for browsers, `records` what is known of the run."""
        self.figures = Figures()
        for record in records:
            self.figures.add_record(record)
        self.sight: m.Sight | None = None
        self.browsers: set[Browser] = set()
        self._title = {**title, "server": where, "fields": FIELDS, "late_edges_s": LATENESS_EDGES_S}
        self._view = self._report = 0
        self.seen_at = self._wanted_until = self._asked_at = self._told_at = self._compared_at = -math.inf
        self._was_connected = False
        self.session = Session(link, where, self, "watcher", new_name())

    def want(self) -> None:
        """Look at the server now; and tell the browsers of the run. Any thread."""
        self._wanted_until = time.monotonic() + _LOOKED_AT_FOR_S
        self._told_at = -math.inf
        self.session.wake()

    def _tell(self, kind: str, data: bytes) -> None:
        for browser in list(self.browsers):
            browser.put(kind, data)

    # -- the connection's thread ---------------------------------------------------------------------

    def on_welcome(self, welcome: m.Welcome, is_new: bool) -> None:
        """Another server counts its reports from 1."""
        if is_new:
            self._report = 0

    def on_message(self, message: m.AnyMessage, body: memoryview) -> None:
        """A view."""
        if not isinstance(message, m.View):
            return
        self._view, self._report = message.number, message.report
        now = time.monotonic()
        sight = self.sight = _decoder.decode(body)
        self.seen_at = now
        for report in sight.reports:
            with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError, OverflowError):  # an odd one
                self.figures.add_record(json.loads(report))
        if now - self._compared_at >= _COMPARES_EVERY_S:
            self._compared_at = now
            self.figures.see(sight.trainers, [beat for _, beat in sight.beats])
        self._tell("workers", sight.workers)

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        """Ask, and tell of the run."""
        now = time.monotonic()
        is_wanted = bool(self.browsers) or now <= self._wanted_until
        if connected != self._was_connected:
            self._was_connected = connected
            self._told_at = -math.inf
            self.figures.tell(*(("good", "connected to the server") if connected else ("bad", "no server answers")))
        if self.browsers and now - self._told_at >= _TELLS_OF_RUN_EVERY_S:
            self._told_at = now
            self._tell("run", msgspec.json.encode(self._run(connected)))
        every_s = _LOOKS_EVERY_S if is_wanted else _KEEPS_UP_EVERY_S
        if connected and now - self._asked_at >= every_s and send(m.encode(m.Look(self._view, self._report))):
            self._asked_at = now
        return max(0.01, min(every_s, self._asked_at + every_s - now))

    def pending(self) -> bool:
        return False

    def beat(self) -> m.Beat:
        return m.Beat()

    def _run(self, connected: bool) -> dict[str, Any]:
        figures = self.figures
        return {
            **self._title,
            "connected": connected,
            "time_s": figures.time_s,
            "round": figures.round,
            "curves": {name: curve.columns() for name, curve in figures.curves.items()},
            "incidents": list(figures.incidents),
        }
