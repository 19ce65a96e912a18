"""The parent's side of the child process: start it, talk to it, start it again, end it.

The child is started with `subprocess` and not forked: a program with threads cannot be forked safely,
and a spawned `multiprocessing` child would import the user's main script again.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import BufferedReader

import msgspec

from tmrl_like.errors import TransportError
from tmrl_like.transport.tlspyo import local

log = logging.getLogger(__name__)

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 2.0
RESTART_AFTER_S = 0.5
_WRITE_TOGETHER_BYTES = 1 << 16
_BOOTSTRAP = (
    "import sys, json; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from tmrl_like.transport.tlspyo.child import main; main()"
)


class Engine:
    """Keeps one child alive and hands what it says to `handle`, in a thread of its own.

    After a child that died unasked, `handle` gets None and another is started with `job()`.
    """

    def __init__(self, job: Callable[[], local.Job], handle: Callable[[local.Event | None], None]) -> None:
        self._job = job
        self._handle = handle
        self._closing = threading.Event()
        self._child: _Child | None = None
        self._thread = threading.Thread(target=self._keep_alive, name="tlspyo", daemon=True)

    def start(self) -> None:
        """Start; does not wait for the child."""
        self._thread.start()

    def _keep_alive(self) -> None:
        while not self._closing.is_set():
            try:
                self._run_child()
            except TransportError as error:
                log.warning("%s", error)
            if not self._closing.is_set():
                self._handle(None)
            self._closing.wait(RESTART_AFTER_S)

    def _run_child(self) -> None:
        child = _Child(self._job(), self._closing)
        self._child = child
        try:
            for event in child.events():
                self._handle(event)
        finally:
            child.end()

    def tell(self, command: local.Command) -> None:
        """Hand a command over; never waits."""
        if self._child:
            self._child.tell(command)

    def give_up(self) -> None:
        """Start no other child."""
        self._closing.set()

    def close(self) -> None:
        """End the child: nicely, or by force when that takes too long. Twice is fine."""
        self.tell(local.Stop())
        self._closing.set()
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive() and self._child:
            self._child.kill()
            self._thread.join(STOP_TIMEOUT_S)


class _Child:
    """One process, and the connection to it."""

    def __init__(self, job: local.Job, closing: threading.Event) -> None:
        """Start it and wait until it calls.

        Raises:
            TransportError: it did not, or `closing` was set.
        """
        self._closing = closing
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._connection: socket.socket | None = None
        self._writer = threading.Thread(target=self._write, name="tlspyo-writer", daemon=True)
        with socket.create_server(("127.0.0.1", 0), backlog=4) as listener:
            token = secrets.token_hex(16)
            start = local.Start(os.getpid(), listener.getsockname()[1], token, job)
            self._process = _spawn(msgspec.json.encode(start))
            try:
                self._connection = self._accept(listener, token.encode())
            except BaseException:
                self.end()
                raise
        self._writer.start()

    def _accept(self, listener: socket.socket, token: bytes) -> socket.socket:
        listener.settimeout(0.1)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and not self._closing.is_set() and self._process.poll() is None:
            with contextlib.suppress(TimeoutError):
                connection = listener.accept()[0]
                if _calls_with(connection, token):
                    return connection
                connection.close()  # somebody else on this machine
        raise TransportError(f"tlspyo's process did not start (exit code {self._process.poll()})")

    def events(self) -> Iterator[local.Event]:
        """Yield what the child says until it ends."""
        assert self._connection
        with contextlib.suppress(OSError), self._connection.makefile("rb") as stream:
            while (said := _read_string(stream)) is not None:
                yield local.decode_event(said)

    def tell(self, command: local.Command) -> None:
        """Queue a command for the writing thread."""
        self._outbox.put(_framed(local.encode(command)))

    def _write(self) -> None:
        """Pass on what was queued, small things together."""
        assert self._connection
        with contextlib.suppress(OSError):  # the child is gone; `events` notices, too
            while (said := self._outbox.get()) is not None:
                together = [said]
                size = len(said)
                while size < _WRITE_TOGETHER_BYTES and not self._outbox.empty():
                    said = self._outbox.get()
                    if said is None:
                        self._outbox.put(None)
                        break
                    together.append(said)
                    size += len(said)
                self._connection.sendall(b"".join(together) if len(together) > 1 else together[0])

    def kill(self) -> None:
        """End the process by force."""
        self._process.kill()

    def end(self) -> None:
        """Wait a moment for the process, then end it by force; free everything."""
        if self._connection is None:
            self.kill()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._outbox.put(None)
        if self._connection:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._writer.join()
            self._connection.close()


def _spawn(start: bytes) -> subprocess.Popen[bytes]:
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except OSError as error:
        raise TransportError(f"cannot start a process for tlspyo: {error}") from None
    assert process.stdin
    with contextlib.suppress(OSError), process.stdin as stdin:  # it died at once: seen when it does not call
        stdin.write(json.dumps([str(path) for path in sys.path]).encode() + b"\n" + start)
    return process


def _calls_with(connection: socket.socket, token: bytes) -> bool:
    expected = _framed(token)
    said = b""
    connection.settimeout(1.0)
    with contextlib.suppress(OSError):
        while len(said) < len(expected) and (more := connection.recv(len(expected) - len(said))):
            said += more
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return hmac.compare_digest(said, expected)


def _framed(said: bytes) -> bytes:
    return len(said).to_bytes(4, "big") + said


def _read_string(stream: BufferedReader) -> bytes | None:
    length = int.from_bytes(stream.read(4), "big")
    said = stream.read(length)
    return said if length and len(said) == length else None
