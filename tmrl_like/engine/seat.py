"""The trainer seat of a run: only one trainer reads its samples at a time.

The seat is a key in a bucket. Its value is the `Hello` of its holder; it expires unless the trainer
keeps writing it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from tmrl_like.engine.subjects import BUCKET, token
from tmrl_like.errors import DecodingError
from tmrl_like.wire import messages as m

if TYPE_CHECKING:
    from nats.js import JetStreamContext
    from nats.js.kv import KeyValue

T = TypeVar("T")

_TTL_S = 5
_COPIES = 3
_NO_CLUSTER = 10074


class SeatKeeper:
    """Takes the seat for a trainer and keeps it.

    All methods raise nats.errors.Error or TimeoutError if that cannot be determined now.
    """

    def __init__(self, run: str, hello: m.Hello, stream: JetStreamContext) -> None:
        self._key = token(run)
        self._hello = hello
        self._stream = stream
        self._revision = 0  # of the seat's key; 0: there is none

    async def sitting(self) -> m.Hello | None:
        """Return who has the seat now, or None; take it if it is free or held by this trainer's
        predecessor.
        """
        from nats.js.errors import KeyWrongLastSequenceError

        bucket = await self._open()
        for _ in range(2):  # the first update fails if the key has changed
            with contextlib.suppress(KeyWrongLastSequenceError):
                self._revision = await bucket.update(
                    self._key, m.encode(self._hello), last=self._revision
                )
                return self._hello
            seat = await self._look(bucket)
            if not (
                seat is None
                or seat.incarnation == self._hello.incarnation
                or self._hello.goes_on_with(seat)
            ):
                self._revision = 0  # the next update succeeds only if the seat is free
                return seat
        return None

    async def _open(self) -> KeyValue:
        """Open the bucket; create it if there is none."""
        from nats.js.errors import BucketNotFoundError

        try:
            return await self._stream.key_value(BUCKET)
        except BucketNotFoundError:
            make = self._stream.create_key_value
            return await in_copies(lambda copies: make(bucket=BUCKET, ttl=_TTL_S, replicas=copies))

    async def _look(self, bucket: KeyValue) -> m.Hello | None:
        """Return who has the seat; None if it is free, or its value is not a hello."""
        from nats.js.errors import KeyNotFoundError

        try:
            entry = await bucket.get(self._key)
        except KeyNotFoundError as free:
            self._revision = (free.entry and free.entry.revision) or 0
            return None
        self._revision = entry.revision or 0
        try:
            seat, _ = m.decode(entry.value or b"")
            return seat if isinstance(seat, m.Hello) else None
        except DecodingError:  # a site can make a node write its answers there
            return None

    async def leave(self) -> None:
        """Free the seat if it is this trainer's."""
        if self._revision:
            await (await self._open()).delete(self._key, last=self._revision)


async def in_copies(make: Callable[[int], Awaitable[T]]) -> T:
    """Create something with three replicas, or with one if there is no cluster."""
    from nats.js.errors import APIError

    try:
        return await make(_COPIES)
    except APIError as error:
        if error.err_code != _NO_CLUSTER:
            raise
        return await make(1)
