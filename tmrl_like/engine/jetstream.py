"""Requests to the JetStream of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tmrl_like.base.text import one_line

if TYPE_CHECKING:
    from nats.aio.client import Client

NOT_ENABLED = (10039, 10076)  # for this account; at this node
NO_CLUSTER = 10074  # more than one replica is asked for, and there is one node
WRONG_LAST_SEQUENCE = 10071
NO_STREAM = 10059
STREAM_DIFFERS = 10058  # one of that name is there
NO_MESSAGE = 10037
_API = "$JS.API"


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


_decoder = msgspec.json.Decoder(Answer)


def subject(what: str) -> str:
    """Where such a request goes."""
    return f"{_API}.{what}"


async def ask(client: Client, what: str, within_s: float = 2.0, **body: Any) -> Answer:
    """Make a request.

    Raises:
        JetStreamError: the answer is no, or no answer.
        TimeoutError: there is none.
    """
    return await store(client, subject(what), msgspec.json.encode(body), within_s)


async def store(
    client: Client, subject: str, data: bytes, within_s: float = 2.0, headers: dict[str, str] | None = None
) -> Answer:
    """Have a message stored; raises what `ask` does."""
    import nats.errors

    try:
        message = await client.request(subject, data, within_s, headers=headers)
    except nats.errors.NoRespondersError:
        reason = "nothing answers for JetStream: enable it at the nodes, and for this user's account"
        raise JetStreamError(0, reason) from None
    try:
        answer = _decoder.decode(message.data)
    except msgspec.MsgspecError as error:
        raise JetStreamError(0, f"an answer that makes no sense: {error}") from None
    if answer.error is not None:
        raise JetStreamError(answer.error.err_code, answer.error.description)
    return answer
