"""Numbers that a game sends: records of a fixed size over TCP."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from tmrl_like.base.options import in_ranges
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.errors import ConfigError, EnvironmentAwayError, expect

log = logging.getLogger("tmrl_like.envs")

_CONNECT_WITHIN_S = 1.0
_RETRY_AFTER_S = 0.25
_LOOK_S = 0.25
_CHUNK_BYTES = 65536

Record = tuple[Any, ...]


class Telemetry:
    """Keeps the newest record of a game that listens on a port and sends one record after another.

    A thread receives records, and connects again when the connection fails or ends. Only the newest
    record is kept. Records are not framed, so lost bytes would shift all later records: a record
    that `is_valid` refuses ends the connection, and the next connection begins with a whole record.
    """

    @in_ranges
    def __init__(
        self,
        layout: str,
        port: Annotated[int, Meta(ge=1, le=65535)],
        host: str = "127.0.0.1",
        is_valid: Callable[[Record], bool] = lambda record: True,
        hint: str = "is the game running, with its telemetry on?",
    ) -> None:
        """Start receiving, without waiting for a connection.

        Args:
            layout: layout of a record, as for `struct`; "<11f" is eleven little-endian float32.
            port: port on which the game listens.
            host: host on which the game runs.
            is_valid: tells whether a record is plausible; called in the receiving thread.
            hint: advice for the error message when no record arrives.

        Raises:
            ConfigError: `layout` is not a layout, or `port` is out of range.
        """
        try:
            self._layout = struct.Struct(layout)
        except struct.error as error:
            raise ConfigError(
                f"{layout!r} is no layout of a telemetry record ({error}); expected one like <2f"
            ) from None
        expect(self._layout.size > 0, "layout", layout, "one of a number or more, like <2f")
        self._address = (host, port)
        self._is_valid = is_valid
        self._changed = threading.Condition()
        self._newest: Record | None = None
        self._newest_at = 0.0
        self._hint = hint
        self._state = "it has not answered yet"
        self._closed = threading.Event()
        self._thread = start_thread(self._run, "tmrl-telemetry")

    def next_record(self, within_s: float) -> Record:
        """Return the newest record; wait for one only if there is none, or it is too old.

        Raises:
            EnvironmentAwayError: no record came within `within_s` seconds; the message says what is
                wrong with the connection.
        """
        with self._changed:
            # an old one may only mean that this whole process was suspended
            wait_s = within_s if self._newest is None else min(within_s, _LOOK_S)
            self._changed.wait_for(lambda: self._is_new(within_s) or self._closed.is_set(), wait_s)
            if self._newest is not None and self._is_new(within_s):
                return self._newest
        host, port = self._address
        raise EnvironmentAwayError(
            f"no telemetry from the game at {host}:{port} for {within_s:g} s ({self._state}): "
            f"{self._hint}"
        )

    def forget(self) -> None:
        """Forget the newest record, so that `next_record` waits for another."""
        with self._changed:
            self._newest = None

    def _is_new(self, within_s: float) -> bool:
        return self._newest is not None and time.monotonic() - self._newest_at < within_s

    def close(self) -> None:
        """End the connection and the thread. Calling it twice is fine."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with socket.create_connection(self._address, _CONNECT_WITHIN_S) as connection:
                    self._state = "it accepts connections and sends nothing"
                    self._lose(self._receive(connection))
            except OSError as error:
                self._lose(str(error.strerror or error).lower())
            except Exception as error:  # of `is_valid`, or of a host that cannot be one
                self._lose(one_line(error))
            self._closed.wait(_RETRY_AFTER_S)

    def _lose(self, reason: str) -> None:
        with self._changed:
            if reason != self._state and not self._closed.is_set():
                log.warning("telemetry at %s:%s: %s", *self._address, reason)
            self._state, self._newest = reason, None

    def _receive(self, connection: socket.socket) -> str:
        """Receive until the connection ends, and return why it did. Keep no more than a chunk and a
        part of a record in memory.
        """
        connection.settimeout(_LOOK_S)
        size, pending = self._layout.size, b""
        while not self._closed.is_set():
            try:
                chunk = connection.recv(_CHUNK_BYTES)
            except TimeoutError:
                continue
            if not chunk:
                return "it ended the connection"
            pending += chunk
            if records := len(pending) // size:
                newest = self._layout.unpack_from(pending, (records - 1) * size)
                if not self._is_valid(newest):
                    return f"what it sends are not records of {size} bytes"
                with self._changed:
                    self._newest, self._newest_at = newest, time.monotonic()
                    self._changed.notify_all()
                pending = pending[records * size :]
        return self._state
