"""Requests to the JetStream of an engine's hub, or of a site's leaf."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from tmrl_like.base.text import one_line
from tmrl_like.engine.connection import hear
from tmrl_like.engine.subjects import inbox, leaf_inbox

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

NO_CLUSTER = 10074  # more than one replica is asked for, and there is one node
WRONG_LAST_SEQUENCE = 10071
NO_STREAM = 10059
STREAM_DIFFERS = 10058  # one of that name is there
NO_MESSAGE = 10037


class JetStreamError(Exception):
    """A request was refused, or nobody is there to answer it.

    Attributes:
        code: JetStream's own; 0: none.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(one_line(reason, 200))
        self.code = code


class _Error(msgspec.Struct, frozen=True):
    err_code: int = 0
    description: str = ""


class Message(msgspec.Struct, frozen=True):
    """A message that a stream keeps."""

    seq: int
    data: bytes = b""


class Answer(msgspec.Struct, frozen=True):
    """What was asked for; of each kind of request something else."""

    error: _Error | None = None
    seq: int = 0  # of what was published
    num_pending: int = 0  # that a consumer has before it
    message: Message | None = None
    config: dict[str, Any] = {}  # of a stream
    streams: tuple[dict[str, Any], ...] | None = None  # some of a list's `total`
    missing: tuple[str, ...] | None = None  # in that list: without a leader
    total: int = 0


_decoder = msgspec.json.Decoder(Answer)


class JetStream:
    """One domain's: the hub's, or that of a leaf.

    Attributes:
        domain: the leaf's; empty: the hub's.
        inbox: where it may answer and deliver, of this object alone; a leaf can use no other than those of its site.
    """

    def __init__(self, client: Client, name: str, domain: str = "") -> None:
        """Ask as the user of that name; call `open` first."""
        self._client = client
        self.domain = domain
        self.inbox = f"{leaf_inbox(name, domain) if domain else inbox(name)}.{secrets.token_hex(8)}"
        self._api = f"$JS.{domain}.API" if domain else "$JS.API"
        self._asked: dict[str, asyncio.Future[Msg]] = {}
        self._numbers = itertools.count()

    async def open(self) -> None:
        """Listen for answers."""
        await hear(self._client, f"{self.inbox}.r.*", self._take)

    def _take(self, answer: Msg) -> None:
        asked = self._asked.get(answer.subject)
        if asked is not None and not asked.done():
            asked.set_result(answer)

    def subject(self, what: str) -> str:
        """Where such a request goes."""
        return f"{self._api}.{what}"

    async def ask(self, what: str, within_s: float = 2.0, **body: Any) -> Answer:
        """Make a request.

        Raises:
            JetStreamError: the answer is no, or no answer.
            TimeoutError: there is none.
        """
        return await self.publish(self.subject(what), msgspec.json.encode(body), within_s)

    async def publish(
        self, subject: str, data: bytes, within_s: float = 2.0, headers: dict[str, str] | None = None
    ) -> Answer:
        """Have a message stored; raises what `ask` does."""
        reply = f"{self.inbox}.r.{next(self._numbers)}"
        asked = self._asked[reply] = asyncio.get_running_loop().create_future()
        try:
            await self._client.publish(subject, data, reply, headers)
            message = await asyncio.wait_for(asked, within_s)
        finally:
            del self._asked[reply]
        if message.headers and message.headers.get("Status") == "503":
            raise JetStreamError(0, "no node that could answer is there")
        try:
            answer = _decoder.decode(message.data)
        except msgspec.MsgspecError as error:
            raise JetStreamError(0, f"an answer that makes no sense: {error}") from None
        if answer.error is not None:
            raise JetStreamError(answer.error.err_code, answer.error.description)
        return answer
