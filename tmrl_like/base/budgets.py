"""Budgets that keep peers of one server and trainer from crowding out each other: tokens, turns,
log lines.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

_MAX_NAMES = 10_000


class Newest(dict[str, T]):
    """Values by name. Beyond 10,000 names, the one that was set longest ago is forgotten."""

    def __setitem__(self, name: str, value: T) -> None:
        self.pop(name, None)
        super().__setitem__(name, value)
        if len(self) > _MAX_NAMES:
            del self[next(iter(self))]


class Bucket:
    """A token bucket: it starts with `burst` tokens and gains `per_s` each second, up to
    `burst`.
    """

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at = 0.0

    def take(self, amount: float, now: float) -> bool:
        """Take tokens; if there are not enough, take none and return False."""
        self._left = min(self._burst, self._left + self._per_s * max(0.0, now - self._at))
        self._at = now
        if amount > self._left:
            return False
        self._left -= amount
        return True


class Buckets:
    """A token bucket for each name; of very many names, the oldest are forgotten."""

    def __init__(self, burst: float, per_s: float) -> None:
        """Start with no names; see `Bucket`."""
        self._burst = burst
        self._per_s = per_s
        self._buckets = Newest[Bucket]()

    def take(self, name: str, amount: float, now: float) -> bool:
        """See `Bucket.take`."""
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(self._burst, self._per_s)
        return bucket.take(amount, now)


class Lines:
    """Limits the log lines about each name to a burst and then a rate; counts those left out, and
    logs their number later.
    """

    def __init__(
        self,
        log: logging.Logger,
        burst: float,
        per_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with no names; see `Bucket`."""
        self._log = log
        self._buckets = Buckets(burst, per_s)
        self._left_out = Newest[int]()
        self._clock = clock

    def __call__(self, name: str, level: int, message: str, *args: object) -> None:
        """Log a line about a name, or count it as left out."""
        if not self._buckets.take(name, 1, self._clock()):
            self._left_out[name] = self._left_out.get(name, 0) + 1
            return
        self._log.log(level, message, *args, stacklevel=2)
        if left_out := self._left_out.pop(name, 0):
            self._log.warning("%d lines about %s were left out", left_out, name)


class Turns(Generic[T]):
    """Shares processing time fairly: the next work is that of the peer that has taken least time.

    A peer's own work is done in order. A peer that is new or returns starts level with the one
    whose turn it was last.
    """

    def __init__(
        self, peer_bytes: int, total_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with no work.

        Args:
            peer_bytes: maximum size of the work of one peer that may wait.
            total_bytes: maximum for all peers with waiting work, in equal shares.
            clock: in seconds.
        """
        self._peer_bytes = peer_bytes
        self._total_bytes = total_bytes
        self._clock = clock
        self._waiting: dict[str, deque[tuple[Iterator[T], int]]] = {}
        self._bytes: dict[str, int] = {}
        self._next: list[tuple[float, str]] = []  # heap: (time taken, peer) of all with work
        self._taken = Newest[float]()
        self._level = 0.0  # time that the peer whose turn it was last had taken before

    def __bool__(self) -> bool:
        return bool(self._next)

    def add(self, name: str, items: Iterator[T], size_bytes: int) -> bool:
        """Append work, to be done item by item; if too much of this peer waits, drop it and return
        False.
        """
        waiting = self._bytes.get(name, 0)
        share = min(
            self._peer_bytes, self._total_bytes // (len(self._bytes) + (name not in self._bytes))
        )
        if waiting and waiting + size_bytes > share:
            return False
        self._bytes[name] = waiting + size_bytes
        if name not in self._waiting:
            self._waiting[name] = deque()
            heapq.heappush(self._next, (max(self._taken.get(name, 0.0), self._level), name))
        self._waiting[name].append((items, size_bytes))
        return True

    def work(self, do: Callable[[T], None], for_s: float) -> float:
        """Work for about `for_s`, on at least one item; return the time that it took."""
        started = now = self._clock()
        while self._next and now - started <= for_s:
            taken, name = self._next[0]
            items, size_bytes = self._waiting[name][0]
            item = next(items, None)
            if item is not None:
                self._level = taken
                do(item)
            else:
                self._waiting[name].popleft()
                self._bytes[name] -= size_bytes
            before, now = now, self._clock()
            taken += now - before
            if self._waiting[name]:
                heapq.heapreplace(self._next, (taken, name))
            else:
                heapq.heappop(self._next)
                del self._waiting[name], self._bytes[name]
                self._taken[name] = taken  # so that a peer cannot get ahead by pausing
        return now - started
