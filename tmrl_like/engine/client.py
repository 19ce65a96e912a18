"""nats-py's client, and what it lacks where a node is frozen, is slow, or is none of ours."""

from __future__ import annotations

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import Error


class NodeClient(Client):
    """A client that dials its nodes in turn, and again where a connection breaks."""

    def __init__(self) -> None:
        super().__init__()
        self._transport = _AbruptTransport()  # type: ignore[no-untyped-call]

    def _connect_command(self) -> bytes:
        """Say who this is, but not in the clear where that was not asked for."""
        node = self._current_server
        if (
            node is not None
            and node.uri.scheme == "tls"
            and not self._server_info.get("tls_required")
        ):
            raise Error("it speaks in the clear, and tls:// was asked for")
        return super()._connect_command()

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        """Take a message: a node that sends some is not silent, though its answer to a ping lies
        behind them.
        """
        self._pings_outstanding = 0
        await super()._process_msg(sid, subject, reply, data, headers)


class _AbruptTransport(TcpTransport):
    """Hangs up at once: a node that is frozen, or whose machine has lost power, says no goodbye."""

    def __bool__(self) -> bool:
        return True  # else the client makes one of its own

    def close(self) -> None:
        if self._io_writer is not None:
            self._io_writer.transport.abort()
