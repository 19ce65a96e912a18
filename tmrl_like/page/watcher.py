"""The watcher: the page's side of the wire, and what it tells browsers."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from tmrl_like.delivery.folder import new_name
from tmrl_like.delivery.session import Session
from tmrl_like.metrics.reading import Record
from tmrl_like.page.figures import FIELDS, Figures
from tmrl_like.transport.base import PeerLink
from tmrl_like.types import LATENESS_EDGES_S
from tmrl_like.wire import messages as m

_LOOKS_EVERY_S = 0.35  # while somebody looks at the page
_KEEPS_UP_EVERY_S = 5.0  # else: a server keeps the reports of much longer
_LOOKED_AT_FOR_S = 3.0  # after a request
_TELLS_OF_RUN_EVERY_S = 3.0
_COMPARES_EVERY_S = 0.9  # what workers say
_DRAWN = ("return", "training_steps_per_env_step", "loss_", "q_", "entropy_", "sample_age_p", "demonstration_share")
_decoder = msgspec.msgpack.Decoder(tuple[list[str], dict[str, int], msgspec.Raw, list[bytes]])


class Sight(NamedTuple):
    """What a server showed."""

    at: float  # `time.monotonic()`
    trainers: list[str]
    counters: dict[str, int]
    packed: bytes  # the workers, as msgpack

    @property
    def workers(self) -> list[tuple[float, list[Any]]]:
        """As `Figures.see` takes them."""
        workers: list[tuple[float, list[Any]]] = msgspec.msgpack.decode(self.packed)
        return workers


class Watcher:
    """Looks at a server, often while somebody looks at the page (see `session.Role`).

    Browsers are told of the "workers" a few times a second, in msgpack as it comes from the server (base64, since
    events are text), and of the "run" every few seconds, in JSON.

    Attributes:
        session: keeps the connection; raises what ended it.
        figures: of the run.
        sight: the newest; None: there was none yet.
        browsers: those who look; what serves the page adds and removes them.
        on_news: is given the kind and the text of what browsers are told, in the connection's thread.
    """

    def __init__(self, link: PeerLink, where: str, title: dict[str, Any], records: Iterable[Record]) -> None:
        """Connect, without waiting for the server; `title` is for browsers, `records` what is known of the run."""
        self.figures = Figures()
        for record in records:
            self.figures.add_record(record)
        self.sight: Sight | None = None
        self.browsers: set[Any] = set()
        self.on_news: Callable[[str, bytes], None] = lambda kind, data: None
        self._title = {**title, "server": where}
        self._title |= {"fields": FIELDS, "late_edges_s": LATENESS_EDGES_S}
        self._view = self._report = 0
        self._wanted_until = self._asked_at = self._told_at = self._compared_at = -math.inf
        self._was_connected = False
        self.session = Session(link, where, self, "watcher", new_name())

    def want(self) -> None:
        """Look at the server now; and tell the browsers of the run. Any thread."""
        self._wanted_until = time.monotonic() + _LOOKED_AT_FOR_S
        self._told_at = -math.inf
        self.session.wake()

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
        trainers, counters, workers, reports = _decoder.decode(body)
        self.sight = Sight(now, trainers, counters, bytes(workers))
        for report in reports:
            with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError, OverflowError):  # an odd one
                self.figures.add_record(json.loads(report))
        if now - self._compared_at >= _COMPARES_EVERY_S:
            self._compared_at = now
            self.figures.see(trainers, self.sight.workers)
        if self.browsers:
            self.on_news("workers", base64.b64encode(self.sight.packed))

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
            self.on_news("run", msgspec.json.encode(self._run(connected)))
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
        curves = {name: curve.columns() for name, curve in figures.curves.items() if name.startswith(_DRAWN)}
        return {
            **self._title,
            "connected": connected,
            "counters": self.sight and self.sight.counters,
            "time_s": figures.time_s,
            "round": figures.round,
            "curves": curves,
            "incidents": list(figures.incidents),
        }
