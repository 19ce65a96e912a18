"""The child process: one relay or one endpoint of tlspyo, and the line to the parent.

It lives exactly as long as its parent wants it: it ends when told to, when the local connection breaks, and
when its parent is gone.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any, Protocol

import msgspec
from twisted.internet import reactor, task
from twisted.internet.protocol import ClientFactory
from twisted.protocols.basic import Int32StringReceiver

from tmrl_like.transport.tlspyo import local

PARENT_CHECK_S = 0.5


class Service(Protocol):
    """What a child does: `Relay` or `Endpoint`."""

    def start(self) -> None: ...
    def obey(self, command: local.Command) -> None: ...
    def congest(self, congested: bool) -> None: ...


def main() -> None:
    """Read a `Start` from standard input and serve until the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    start = msgspec.json.decode(sys.stdin.buffer.read(), type=local.Start)
    logging.getLogger("tlspyo").setLevel(logging.CRITICAL)
    reactor.connectTCP("127.0.0.1", start.local_port, _ParentFactory(start))
    if os.name == "posix":
        task.LoopingCall(_end_without_parent, start.parent).start(PARENT_CHECK_S)
    reactor.run(installSignalHandlers=False)


def _end_without_parent(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)


class _Parent(Int32StringReceiver):  # type: ignore[misc]
    """The line to the parent. It is also the producer's side: told when the parent does not keep up."""

    MAX_LENGTH = local.MAX_LOCAL_BYTES

    def __init__(self, start: local.Start) -> None:
        self._start = start
        self._service: Service

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name
        self.transport.setTcpNoDelay(True)
        self.sendString(self._start.token.encode())
        try:
            self._service = _service_for(self._start.job, self)
            self.transport.registerProducer(self, True)
            self._service.start()
        except Exception as error:  # a key that is none, or an address that is none
            self.tell(local.Failed(False, f"{type(error).__name__}: {error}"))
            self.hang_up()

    def stringReceived(self, string: bytes) -> None:  # noqa: N802 - Twisted's name
        self._service.obey(local.decode_command(string))

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        if reactor.running:
            reactor.stop()

    def tell(self, event: local.Event) -> None:
        """Send an event to the parent."""
        self.sendString(local.encode(event))

    def hang_up(self) -> None:
        """Say what is left to say; then the process ends."""
        self.transport.unregisterProducer()  # Twisted waits for a producer
        self.transport.loseConnection()

    def pauseProducing(self) -> None:  # noqa: N802 - Twisted's name
        self._service.congest(True)

    def resumeProducing(self) -> None:  # noqa: N802 - Twisted's name
        self._service.congest(False)

    def stopProducing(self) -> None:  # noqa: N802 - Twisted's name
        pass  # the connection is being lost


class _ParentFactory(ClientFactory):  # type: ignore[misc]
    noisy = False

    def __init__(self, start: local.Start) -> None:
        self._start = start

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802 - Twisted's name
        return _Parent(self._start)

    def clientConnectionFailed(self, connector: Any, reason: Any) -> None:  # noqa: N802 - Twisted's name
        reactor.stop()


def _service_for(job: local.Job, parent: _Parent) -> Service:
    if isinstance(job, local.RelayJob):
        from tmrl_like.transport.tlspyo.relay import Relay

        return Relay(job, parent)
    from tmrl_like.transport.tlspyo.endpoint import Endpoint

    return Endpoint(job, parent)
