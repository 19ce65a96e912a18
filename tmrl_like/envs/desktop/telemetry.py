"""Numbers that a game sends: records of a fixed size over TCP."""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Callable, Generator, Iterator
from typing import Annotated, Any

from msgspec import Meta

from tmrl_like.base.options import AboveZero, in_ranges
from tmrl_like.base.text import one_line
from tmrl_like.envs.sensor import Sensor
from tmrl_like.errors import ConfigError, EnvironmentAwayError, expect

log = logging.getLogger("tmrl_like.envs")

_CONNECT_WITHIN_S = 1.0
_RETRY_AFTER_S = 0.25
_LOOK_S = 0.1
_CHUNK_BYTES = 65536

Record = tuple[Any, ...]


class Telemetry(Sensor[Record]):
    """Keeps the newest record of a game that listens on a port and sends one record after another.

    It connects again when the connection fails or ends. Records are not framed, so lost bytes would
    shift all later records: a record that `is_valid` refuses ends the connection, and the next
    connection begins with a whole record.
    """

    @in_ranges
    def __init__(
        self,
        layout: str,
        port: Annotated[int, Meta(ge=1, le=65535)],
        host: str = "127.0.0.1",
        is_valid: Callable[[Record], bool] = lambda record: True,
        hint: str = "is the game running, with its telemetry on?",
        silent_after_s: AboveZero = 4.0,
        first_within_s: AboveZero = 5.0,
    ) -> None:
        """Start receiving, and wait for the first record.

        Args:
            layout: layout of a record, as for `struct`; "<11f" is eleven little-endian float32.
            port: port on which the game listens.
            host: host on which the game runs.
            is_valid: tells whether a record is plausible; called in the receiving thread.
            hint: advice for the error message when no record arrives.
            silent_after_s: seconds without a record after which the game counts as away; more than
                it takes to load a level, if it sends nothing meanwhile.
            first_within_s: seconds within which the first record must arrive.

        Raises:
            ConfigError: `layout` is not a layout, or `port` is out of range.
            EnvironmentAwayError: no record arrived in time; the message says what is wrong with the
                connection.
        """
        try:
            self._layout = struct.Struct(layout)
        except struct.error as error:
            raise ConfigError(
                f"{layout!r} is no layout of a telemetry record ({error}); expected one like <2f"
            ) from None
        expect(self._layout.size > 0, "layout", layout, "one of a number or more, like <2f")
        self._address, self._is_valid, self._hint = (host, port), is_valid, hint
        self._logged = ""  # what was wrong last; each state is logged once
        self._note("it has not answered yet")
        self._stream = self._records()
        super().__init__(
            f"the game's telemetry at {host}:{port}",
            self._stream.__next__,
            silent_after_s,
            first_within_s,
            EnvironmentAwayError,
        )

    def _run(self) -> None:
        super()._run()
        self._stream.close()  # and its connection

    def _records(self) -> Generator[Record, None, None]:
        """Yield the records that arrive, until this is closed."""
        while not self._is_over:
            try:
                with socket.create_connection(self._address, _CONNECT_WITHIN_S) as connection:
                    self._note("it accepts connections and sends nothing")
                    yield from self._received(connection)
            except Exception as error:  # may come from `is_valid`, which is the user's
                reason = str(getattr(error, "strerror", None) or one_line(error)).lower()
                if reason != self._logged:
                    log.warning("telemetry at %s:%s: %s", *self._address, reason)
                self._logged = reason
                self._note(reason)
            time.sleep(_RETRY_AFTER_S)

    def _received(self, connection: socket.socket) -> Iterator[Record]:
        """Yield the records of a connection, the newest one of each chunk. Keep no more than a
        chunk and a part of a record in memory.

        Raises:
            OSError: the connection failed or ended.
        """
        connection.settimeout(_LOOK_S)
        size, pending = self._layout.size, b""
        while not self._is_over:
            try:
                chunk = connection.recv(_CHUNK_BYTES)
            except TimeoutError:
                continue
            if not chunk:
                raise ConnectionError("it ended the connection")
            pending += chunk
            if records := len(pending) // size:
                newest = self._layout.unpack_from(pending, (records - 1) * size)
                if not self._is_valid(newest):
                    raise ConnectionError(f"what it sends are not records of {size} bytes")
                self._logged = ""
                yield newest
                pending = pending[records * size :]

    def _note(self, state: str) -> None:
        self.why = f" ({state}): {self._hint}"
