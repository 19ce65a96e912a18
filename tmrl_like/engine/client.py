"""nats-py's client, extended to cope with nodes that are frozen, slow, or not to be trusted."""

from __future__ import annotations

import base64

import nkeys
from nats.aio.client import DEFAULT_FLUSH_TIMEOUT, Client
from nats.aio.transport import TcpTransport
from nats.errors import Error

from tmrl_like.engine.user import EngineUser
from tmrl_like.errors import CredentialsError


class NodeClient(Client):
    """A client that dials its nodes in turn, and again when a connection breaks.

    It reads its credentials file once per dial, so that JWT and key always belong to the same user,
    even if the file is replaced meanwhile.
    """

    def __init__(self, credentials: str | None) -> None:
        super().__init__()
        self._credentials = credentials
        self._transport = _AbruptTransport()  # type: ignore[no-untyped-call]

    async def flush(self, timeout: int = DEFAULT_FLUSH_TIMEOUT) -> None:
        """Return when the node has taken all that was said. The ping of nats-py overtakes what
        still waits to be written, so a second one follows.
        """
        await super().flush(timeout)
        await super().flush(timeout)

    def _connect_command(self) -> bytes:
        """Return the command that identifies this user; refuse an unencrypted node if `tls://` was
        given.
        """
        node = self._current_server
        if (
            node is not None
            and node.uri.scheme == "tls"
            and not self._server_info.get("tls_required")
        ):
            raise Error("it offers no encryption, and tls:// was asked for")
        if self._credentials is not None:
            try:
                user = EngineUser.of(self._credentials)
            except CredentialsError as error:  # the file may be being replaced
                raise Error(str(error)) from None
            self._user_jwt_cb = user.jwt.encode
            key = nkeys.from_seed(bytearray(user.seed.encode()))
            self._signature_cb = lambda nonce: base64.b64encode(key.sign(nonce.encode()))
        return super()._connect_command()

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        """Handle a message, and count it as a sign of life: the answer to a ping may be queued
        behind messages.
        """
        self._pings_outstanding = 0
        await super()._process_msg(sid, subject, reply, data, headers)


class _AbruptTransport(TcpTransport):
    """Closes at once: a node that is frozen, or whose machine has lost power, never says
    goodbye.
    """

    def __bool__(self) -> bool:
        return True  # else the client creates its own transport

    def close(self) -> None:
        if self._io_writer is not None:
            self._io_writer.transport.abort()
