"""The trainer's seat of a run: one trainer at a time, or the ranks of one group, reads its samples.

It is a key in a bucket, whose value is the `Hello` of who has it; it expires unless its trainer
writes it again.
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


def is_of(seat: m.Hello, hello: m.Hello) -> bool:
    """Whether a seat is this trainer's, or that of the group whose rank it is."""
    return seat.incarnation == hello.incarnation or (
        hello.rank.number > 0 and seat.rank.group == hello.rank.group
    )


class SeatKeeper:
    """Takes the seat for one trainer and keeps it; of ranks other than 0, looks who has it.

    All methods raise nats.errors.Error or TimeoutError: nobody knows now.
    """

    def __init__(self, run: str, hello: m.Hello, stream: JetStreamContext) -> None:
        self._key = token(run)
        self._hello = hello
        self._stream = stream
        self._revision = 0  # of what is there; 0: nothing

    async def sitting(self) -> m.Hello | None:
        """Who has the seat now: this trainer, where it is free or its predecessor's; None:
        nobody.
        """
        from nats.js.errors import KeyWrongLastSequenceError

        bucket = await self._open()
        if self._hello.rank.number:
            return await self._look(bucket)
        for _ in range(2):  # as what is there may be another's, and then free
            with contextlib.suppress(KeyWrongLastSequenceError):
                self._revision = await bucket.update(
                    self._key, m.encode(self._hello), last=self._revision
                )
                return self._hello
            seat = await self._look(bucket)
            if not (seat is None or is_of(seat, self._hello) or self._hello.goes_on_with(seat)):
                self._revision = 0  # only where it is free
                return seat
        return None

    async def _open(self) -> KeyValue:
        """The bucket, which a rank 0 makes where there is none."""
        from nats.js.errors import BucketNotFoundError

        try:
            return await self._stream.key_value(BUCKET)
        except BucketNotFoundError:
            if self._hello.rank.number:
                raise
            make = self._stream.create_key_value
            return await in_copies(lambda copies: make(bucket=BUCKET, ttl=_TTL_S, replicas=copies))

    async def _look(self, bucket: KeyValue) -> m.Hello | None:
        """Who has the seat; None: nobody, or somebody who is no trainer."""
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
        except DecodingError:  # a site can have the node's answers written there
            return None

    async def leave(self) -> None:
        """Free the seat, where it is this trainer's."""
        if self._revision and not self._hello.rank.number:
            await (await self._open()).delete(self._key, last=self._revision)


async def in_copies(make: Callable[[int], Awaitable[T]]) -> T:
    """Have something kept in three copies or, where there is one node, in one."""
    from nats.js.errors import APIError

    try:
        return await make(_COPIES)
    except APIError as error:
        if error.err_code != _NO_CLUSTER:
            raise
        return await make(1)
