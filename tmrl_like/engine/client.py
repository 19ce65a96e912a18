"""nats-py's client, and what it lacks where a node is frozen, is slow, or is none of ours."""

from __future__ import annotations

import base64

import nkeys
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import Error

from tmrl_like.engine.user import EngineUser
from tmrl_like.errors import CredentialsError


class NodeClient(Client):
    """A client that dials its nodes in turn, and again where a connection breaks.

    At each dial it reads its file of credentials once: JWT and key are of one user, also where the
    file is replaced meanwhile.
    """

    def __init__(self, credentials: str | None) -> None:
        super().__init__()
        self._credentials = credentials
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
        if self._credentials is not None:
            try:
                user = EngineUser.of(self._credentials)
            except CredentialsError as error:  # it is being replaced, perhaps
                raise Error(str(error)) from None
            self._user_jwt_cb = user.jwt.encode
            key = nkeys.from_seed(bytearray(user.seed.encode()))
            self._signature_cb = lambda nonce: base64.b64encode(key.sign(nonce.encode()))
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
