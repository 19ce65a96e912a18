"""Both sides of the seam, over the child process."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from tmrl_like.errors import AddressInUseError, CredentialsError, DecodingError, TransportError
from tmrl_like.transport.base import Identity, Incoming, TransportOptions
from tmrl_like.transport.credentials import KeyFolder, PeerKeys
from tmrl_like.transport.frames import Assembler, cut, pieces_of
from tmrl_like.transport.tlspyo import local
from tmrl_like.transport.tlspyo.engine import START_TIMEOUT_S, Engine

log = logging.getLogger(__name__)

_LINGER_S = 0.5
_LINES_OF_A_CHILD_BITS = 40


class _Line:
    """One proved connection. Guarded by the link's lock where both threads count."""

    def __init__(self, number: int, options: TransportOptions) -> None:
        self.number = number
        self.identity: Identity | None = None
        self.assembler = Assembler(options.max_message_bytes)
        self.forgotten = False
        self.revoked = False
        self._options = options
        self._under_way: deque[int] = deque()  # sizes of the messages that were not acknowledged
        self._under_way_bytes = 0
        self._waiting = 0
        self._waiting_bytes = 0
        self._held = False

    def start_sending(self, size: int) -> bool:
        """Count a message as under way, unless that would be too much."""
        too_many = len(self._under_way) >= self._options.queue_messages
        if too_many or self._under_way_bytes + size > self._options.queue_bytes:
            return False
        self._under_way.append(size)
        self._under_way_bytes += size
        return True

    def acknowledged(self) -> None:
        """The oldest message under way has arrived."""
        if self._under_way:
            self._under_way_bytes -= self._under_way.popleft()

    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way

    def arrived(self, size: int) -> bool:
        """Count a message that waits to be received; True: hold the line now."""
        self._waiting += 1
        self._waiting_bytes += size
        too_many = self._waiting >= self._options.queue_messages
        too_much = too_many or self._waiting_bytes >= self._options.queue_bytes
        hold, self._held = too_much and not self._held, self._held or too_much
        return hold

    def received(self, size: int) -> bool:
        """Count a message as received; True: release the line now."""
        self._waiting -= 1
        self._waiting_bytes -= size
        enough = self._waiting <= self._options.queue_messages // 2
        few_bytes = self._waiting_bytes <= self._options.queue_bytes // 2
        release = self._held and enough and few_bytes
        self._held = self._held and not release
        return release


class _Link:
    """What both sides share: lines, an inbox, and the child that does the work."""

    def __init__(self, job: Callable[[], local.Job], options: TransportOptions) -> None:
        self.options = options
        self.lines: dict[int, _Line] = {}
        self.refused = 0
        self.port = 0
        self.settled = threading.Event()  # the child listens or dials, or has failed
        self.error: TransportError | None = None
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[tuple[_Line, bytes | memoryview] | None] = queue.SimpleQueue()
        self._woken = False
        self._message_ids = itertools.count()
        self._engine = Engine(job, self._handle)
        self._engine.start()

    # the child's thread

    def _handle(self, event: local.Event | None) -> None:
        if isinstance(event, local.Took):
            self._take(event)
        elif isinstance(event, local.Acknowledged):
            with self._lock:
                if line := self.lines.get(event.line):
                    line.acknowledged()
        elif isinstance(event, local.Joined):
            line = self.lines.setdefault(event.line, _Line(event.line, self.options))
            line.identity = Identity(event.name, event.roles)
        elif isinstance(event, local.Left):
            if line := self.lines.pop(event.line, None):
                line.revoked = event.revoked
        elif isinstance(event, local.Refused):
            self._count_refused()
        else:
            self._settle(event)

    def _take(self, event: local.Took) -> None:
        line = self.lines.get(event.line)
        if line is None:
            return
        try:
            data = line.assembler.add(event.piece)
        except DecodingError as error:
            log.warning("cut the connection of %s: %s", line.identity.name if line.identity else "?", error)
            self._engine.tell(local.Drop(line.number))
            return
        if data is not None:
            with self._lock:
                hold = line.arrived(len(data))
            if hold:
                self._engine.tell(local.Hold(line.number))
            self._inbox.put((line, data))

    def _count_refused(self) -> None:
        self.refused += 1
        if self.refused == 1:
            log.warning("refused a connection without a valid key; `tmrl-like keys invite` makes a valid one")

    def _settle(self, event: local.Ready | local.Failed | local.Denied | None) -> None:
        if isinstance(event, local.Ready):
            self.port = event.port
        elif isinstance(event, local.Failed):
            self._fail((AddressInUseError if event.taken else TransportError)(event.reason))
        elif isinstance(event, local.Denied):
            self.error = CredentialsError(event.reason)
            self.wake()
        else:  # the child died
            self.lines.clear()
            if not self.settled.is_set():
                self._fail(TransportError("tlspyo's process does not start; its own error is printed above"))
        self.settled.set()

    def _fail(self, error: TransportError) -> None:
        """Failing at the start is final; a relay that is started again may have to wait for its port."""
        if not self.settled.is_set():
            self.error = error
            self._engine.give_up()
            self.wake()

    # the user's thread

    def receive(self, timeout_s: float) -> tuple[_Line, bytes | memoryview] | None:
        """The next message of a line whose key is still valid."""
        until = time.monotonic() + timeout_s
        while True:
            remaining_s = until - time.monotonic()
            try:
                item = self._inbox.get(timeout=remaining_s) if remaining_s > 0 else self._inbox.get_nowait()
            except queue.Empty:
                return None
            if item is None:
                self._woken = False
                return None
            line, data = item
            with self._lock:
                release = line.received(len(data))
            if release:
                self._engine.tell(local.Release(line.number))
            if not line.revoked:
                line.forgotten = False
                return item

    def send(self, line: _Line, data: bytes | memoryview) -> bool:
        """Hand a message to the child."""
        with self._lock:
            if not line.start_sending(len(data)):
                return False
        last = pieces_of(len(data)) - 1
        for index, piece in enumerate(cut(next(self._message_ids), data)):
            self._engine.tell(local.Give(line.number, memoryview(piece), index == last))
        return True

    def wake(self) -> None:
        """Make a waiting `receive` return."""
        if not self._woken:
            self._woken = True
            self._inbox.put(None)

    def flush(self) -> None:
        """Wait a moment for what is under way."""
        until = time.monotonic() + _LINGER_S
        while time.monotonic() < until and not all(line.idle() for line in list(self.lines.values())):
            time.sleep(0.005)

    def close(self) -> None:
        """End the child."""
        self._engine.close()
        self.lines.clear()


class TlspyoServerLink:
    """Listens on one TCP port. See `ServerLink`."""

    def __init__(self, host: str, port: int, keys: KeyFolder, options: TransportOptions | None = None) -> None:
        """Bind before it returns.

        Raises:
            AddressInUseError: the port is taken.
            TransportError: the address cannot be bound, or the relay's process does not start.
            CredentialsError: the server's keys cannot be read.
        """
        self.address = (host, port)
        self._keys = keys
        self._server_keys = keys.server_keys()
        self._children = itertools.count()
        self._options = options or TransportOptions()
        self._link = _Link(self._job, self._options)
        if not self._link.settled.wait(START_TIMEOUT_S) or self._link.error:
            self._link.close()
            raise self._explained(self._link.error)
        self.address = (host, self._link.port)

    def _job(self) -> local.RelayJob:
        server = self._server_keys
        return local.RelayJob(
            *self.address,
            tls_key=server.tls_key,
            tls_certificate=server.tls_certificate,
            password=server.password,
            curve_public=server.curve_public,
            curve_secret=server.curve_secret,
            keys_dir=str(self._keys.path.absolute()),
            lines_from=next(self._children) << _LINES_OF_A_CHILD_BITS,
            options=self._options,
        )

    def _explained(self, error: TransportError | None) -> TransportError:
        host, port = self.address
        if isinstance(error, AddressInUseError):
            return AddressInUseError(
                f"port {port} on {host} is taken: another server runs there, or choose another port (--server.port)"
            )
        return TransportError(f"cannot listen on {host}:{port}: {error or 'the relay did not start in time'}")

    def receive(self, timeout_s: float) -> Incoming | None:
        """See `ServerLink.receive`."""
        item = self._link.receive(timeout_s)
        if item is None:
            return None
        line, data = item
        assert line.identity
        return Incoming(_id_of(line.number), line.identity, data)

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        """See `ServerLink.send`."""
        self._options.check_size(len(data))
        line = self._link.lines.get(int.from_bytes(peer, "big"))
        return line is not None and not line.forgotten and self._link.send(line, data)

    def forget(self, peer: bytes) -> None:
        """See `ServerLink.forget`; a forgotten peer that speaks again is known again."""
        if line := self._link.lines.get(int.from_bytes(peer, "big")):
            line.forgotten = True

    def wake(self) -> None:
        """See `ServerLink.wake`."""
        self._link.wake()

    def refused_connections(self) -> int:
        """See `ServerLink.refused_connections`."""
        return self._link.refused

    def close(self) -> None:
        """See `ServerLink.close`."""
        self._link.close()


class TlspyoPeerLink:
    """Dials one server and goes on dialling. See `PeerLink`."""

    def __init__(self, host: str, port: int, keys: PeerKeys, options: TransportOptions | None = None) -> None:
        self._where = f"{host}:{port}"
        self._options = options or TransportOptions()
        job = local.EndpointJob(
            host,
            port,
            tls_certificate=keys.tls_certificate,
            password=keys.password,
            curve_public=keys.curve_public,
            curve_secret=keys.curve_secret,
            server_curve_public=keys.server_curve_public,
            options=self._options,
        )
        self._link = _Link(lambda: job, self._options)

    def receive(self, timeout_s: float) -> bytes | memoryview | None:
        """See `PeerLink.receive`."""
        item = self._link.receive(0.0 if self._link.error else timeout_s)
        if item is None and self._link.error:
            raise self._explained(self._link.error)
        return None if item is None else item[1]

    def _explained(self, error: TransportError) -> TransportError:
        if not isinstance(error, CredentialsError):
            return error
        if str(error) == "key refused":
            return CredentialsError(
                f"the server at {self._where} refuses this machine's key: on the server's machine run "
                "`tmrl-like keys invite NAME`, then here `tmrl-like keys join -`"
            )
        return CredentialsError(
            f"what listens at {self._where} is not the server that this machine's key is for: check "
            "the address, or join that server with a line from its `tmrl-like keys invite NAME`"
        )

    def send(self, data: bytes) -> bool:
        """See `PeerLink.send`. Also False while there is no connection: nothing piles up."""
        self._options.check_size(len(data))
        line = next(iter(self._link.lines.values()), None)
        return line is not None and self._link.send(line, data)

    def wake(self) -> None:
        """See `PeerLink.wake`."""
        self._link.wake()

    def close(self) -> None:
        """See `PeerLink.close`."""
        self._link.flush()
        self._link.close()


def _id_of(number: int) -> bytes:
    return number.to_bytes(8, "big")
