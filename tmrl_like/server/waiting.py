"""Messages that wait for a trainer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

KEPT_BYTES = 500
"""About how much memory a stored message takes in addition to its bytes."""


class WaitingMessages:
    """Messages of several keys, sent in turns; the messages of one key stay in order.

    Attributes:
        samples: approximate number of samples that wait.
        size_bytes: total size of the messages that wait.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._queues: dict[str, deque[bytes | memoryview]] = {}  # by key; next to be sent first
        self._bytes: dict[str, int] = {}
        self.samples = 0
        self.size_bytes = 0

    def add(self, key: str, data: bytes | memoryview, max_bytes: int) -> int:
        """Append a message of a key, and return how many messages were dropped.

        Above `max_bytes` the newest messages of the key with the most bytes are dropped, so that
        messages that are sent again continue what is kept. A single message is never too large.
        """
        max_bytes = max(max_bytes, len(data) + KEPT_BYTES)
        self._queues.setdefault(key, deque()).append(data)
        self._count(key, len(data) + KEPT_BYTES)
        dropped = 0
        while self.size_bytes > max_bytes:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            self._count(largest, -len(self._queues[largest].pop()) - KEPT_BYTES)
            dropped += 1
        return dropped

    def send(self, send: Callable[[bytes | memoryview], bool]) -> bool:
        """Send all messages that wait; return False as soon as `send` accepts no more."""
        while self._queues:
            key = next(iter(self._queues))
            queue = self._queues[key]
            if queue:
                if not send(queue[0]):
                    return False
                self._count(key, -len(queue.popleft()) - KEPT_BYTES)
            del self._queues[key]
            if queue:
                self._queues[key] = queue  # behind the others
        self._bytes.clear()
        self.samples = 0
        return True

    def _count(self, key: str, size_bytes: int) -> None:
        self._bytes[key] = self._bytes.get(key, 0) + size_bytes
        self.size_bytes += size_bytes
