"""One pass over an engine's stream: a consumer that delivers its messages in order.

`fetch` of nats-py makes two tasks for each message. Beside a busy training thread, each of them
waits some milliseconds for its turn, so that 250 messages are read a second. Here a callback takes
all messages of a request that have come in one turn.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from tmrl_like.engine.connection import hear, wait

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

_REQUEST_S = 1.0  # how long a request for messages stays open
_LATE_S = 0.5  # after this time, the answer to a request is missing
_BATCH = 10_000  # messages; a request ends earlier by its size
_TOO_MANY = "Exceeded MaxRequestBatch of "  # how nodes refuse a request for more than they allow
_IDLE_S = 120.0  # a consumer without requests is forgotten; more than a packet counts in the window


class StreamPass:
    """Reads a stream from its first message. `open` it before the first `pull`.

    All methods raise nats.errors.Error or TimeoutError if the nodes do not answer now, or refuse a
    request.

    Attributes:
        is_broken: whether a message was skipped: what follows is not delivered.
    """

    def __init__(
        self, client: Client, stream: JetStreamContext, name: str, take: Callable[[Msg], None]
    ) -> None:
        """Read the stream `name`; `take` is called in the loop with each message."""
        self.is_broken = False
        self._client = client
        self._stream = stream
        self._name = name
        self._take = take
        self._taken = 0
        self._requests = 0
        self._answered = asyncio.Event()
        self._refusal: str | None = None  # of the newest request
        self._inbox = client.new_inbox()
        self._limits = {
            "batch": _BATCH,
            # the largest message fits: a request ends before the message that would exceed its size
            "max_bytes": 2 * client.max_payload,
            "expires": int(_REQUEST_S * 1e9),
        }

    async def open(self, subject: str) -> None:
        """Create the consumer, for the messages of a subject."""
        from nats.js.api import AckPolicy, ConsumerConfig

        config = ConsumerConfig(
            filter_subject=subject,
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_IDLE_S,
        )
        self._consumer = (await self._stream.add_consumer(self._name, config)).name
        self._subscription = await hear(self._client, f"{self._inbox}.*", self._on_message)

    async def pull(self) -> bool:
        """Take the messages that there are, or that come within a second; return whether there were
        any.
        """
        from nats.errors import Error

        before = self._taken
        await self._ask()
        refusal = self._refusal or ""
        if refusal.startswith(_TOO_MANY):
            self._limits["batch"] = int(refusal.removeprefix(_TOO_MANY))
            await self._ask()
        if self._refusal is not None and self._taken == before:
            raise Error(self._refusal)
        return self._taken > before

    async def _ask(self) -> None:
        """Request messages, and wait for the end of the request."""
        self._requests += 1
        self._refusal = None
        self._answered.clear()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._name}.{self._consumer}"
        request = json.dumps(self._limits).encode()
        await self._client.publish(subject, request, reply=self._reply)
        await wait(self._answered, _REQUEST_S + _LATE_S)

    @property
    def _reply(self) -> str:
        """The subject on which the nodes say that the newest request has ended."""
        return f"{self._inbox}.{self._requests}"

    def _on_message(self, message: Msg) -> None:
        if message.subject == self._reply:
            headers = message.headers or {}
            if headers.get("Status") != "408":  # it has not expired
                self._refusal = headers.get("Description", "").partition("\n")[0]
            self._answered.set()
        # not the end of an earlier request, which comes late
        elif not message.subject.startswith(self._inbox) and not self.is_broken:
            self._taken += 1
            self.is_broken = message.metadata.sequence.consumer != self._taken
            if not self.is_broken:
                self._take(message)

    async def has_missed_some(self) -> bool:
        """Whether the consumer has delivered messages that never came."""
        delivered = (await self._stream.consumer_info(self._name, self._consumer)).delivered
        return delivered is None or delivered.consumer_seq != self._taken

    async def close(self) -> None:
        """Take nothing more."""
        await self._subscription.unsubscribe()
