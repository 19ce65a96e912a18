"""Telling the nodes of an engine whom its account has revoked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import msgspec

from tmrl_like.engine.authority import Authority
from tmrl_like.engine.connection import EngineConnection, hear
from tmrl_like.engine.options import node_url
from tmrl_like.engine.subjects import CLAIMS_UPDATE, inbox

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

_LOOK_S = 0.02


class _Server(msgspec.Struct):
    name: str


class _Outcome(msgspec.Struct):
    code: int


class _Answer(msgspec.Struct):
    server: _Server
    data: _Outcome | None = None


def push_revocations(authority: Authority, within_s: float = 3.0) -> list[str]:
    """Give every node the account's JWT; returns the names of those that have not confirmed it in time.

    A node closes the connections of a user that is revoked, and lets it in no more. One that was away has the JWT
    from the others a few seconds after it is back.
    """
    user, jwt = authority.system_user(), authority.account_jwt().encode()
    missing, deadline = set(authority.nodes), time.monotonic() + within_s

    def take(message: Msg) -> None:
        with contextlib.suppress(msgspec.MsgspecError):
            answer = msgspec.json.decode(message.data, type=_Answer)
            if answer.data is not None and answer.data.code == 200:
                missing.discard(answer.server.name)

    async def attend(client: Client) -> None:
        answers = f"{inbox(user.name)}.claims"
        await hear(client, answers, take)
        await client.publish(CLAIMS_UPDATE, jwt, reply=answers)
        while missing and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)

    connections = [EngineConnection([node_url(node)], user, attend, says_itself=False) for node in authority.nodes]
    while missing and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    for connection in connections:
        connection.close(flush_s=0.0)
    return [node for node in authority.nodes if node in missing]
