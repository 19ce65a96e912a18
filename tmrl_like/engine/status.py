"""What an engine holds and who is connected to it, asked of its nodes, its leaves and its gateways."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tmrl_like.engine.connection import EngineConnection, hear
from tmrl_like.engine.jetstream import JetStream, JetStreamError
from tmrl_like.engine.subjects import SEATS, GatewayState, TrainerSeat, name_of_token, stream_name, token
from tmrl_like.errors import CredentialsError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from tmrl_like.engine.authority import EngineUser

_REACH_S = 4.0
_ASK_S = 5.0  # a cluster waits four seconds for those of its nodes that do not answer
_GATHER_S = 30.0
_LISTEN_S = 2.2  # gateways speak once a second
_MAX_GATEWAYS = 1000
_FULL_SHARE = 0.95


class Replica(msgspec.Struct, frozen=True):
    """A copy of a stream beside its leader's."""

    name: str
    current: bool = False
    offline: bool = False
    lag: int = 0  # entries of the log that it has not got


class _Cluster(msgspec.Struct, frozen=True):
    leader: str = ""
    replicas: tuple[Replica, ...] = ()


class _State(msgspec.Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    first_ts: datetime.datetime | None = None


class _Config(msgspec.Struct, frozen=True):
    name: str
    max_bytes: int = -1
    num_replicas: int = 1


class Stream(msgspec.Struct, frozen=True):
    """A run's stream, as a broker describes it."""

    config: _Config
    state: _State
    cluster: _Cluster = _Cluster()

    @property
    def oldest_s(self) -> float:
        """How long its first message has been waiting; 0: none is."""
        if not self.state.messages or self.state.first_ts is None:
            return 0.0
        return max(0.0, time.time() - self.state.first_ts.timestamp())


@dataclass
class Gateway:
    """One of a site's, from what it said while we listened."""

    run: str
    site: str
    state: GatewayState
    samples_per_s: float = 0.0
    _first: tuple[float, int] | None = None

    def say(self, state: GatewayState, now: float) -> None:
        """Take what it says at a time."""
        if self._first is None:
            self._first = now, state.samples
        elif now > self._first[0]:
            self.samples_per_s = (state.samples - self._first[1]) / (now - self._first[0])
        self.state = state


@dataclass
class EngineStatus:
    """An engine at a moment. Runs and sites are by their names; the hub's streams are of the site ""."""

    nodes: dict[str, str] = field(default_factory=dict)
    """Why a node cannot be asked, by address; empty: it can."""
    streams: dict[tuple[str, str], Stream | None] = field(default_factory=dict)
    """By run and site; None: it has no leader now."""
    silent: list[str] = field(default_factory=list)
    """Whose JetStream answers nothing: sites with a leaf, or the hub ("")."""
    gateways: list[Gateway] = field(default_factory=list)
    trainers: dict[str, str] = field(default_factory=dict)
    """Who is in a run's seat."""

    def runs(self) -> list[str]:
        """All that there is a stream or a gateway of."""
        return sorted({run for run, _ in self.streams} | {gateway.run for gateway in self.gateways})

    def problems(self) -> Iterator[str]:
        """What is wrong, a line each."""
        yield from (f"{node}: {problem}" for node, problem in self.nodes.items() if problem)
        for site in self.silent:
            yield f"JetStream at {place(site)} does not answer"
        for (run, site), stream in self.streams.items():
            what = f"the stream of run {run} at {place(site)}"
            if stream is None or (stream.config.num_replicas > 1 and not stream.cluster.leader):
                yield f"{what} has no leader: more than half of its nodes must be there"
                continue
            for replica in stream.cluster.replicas:
                if replica.offline or not replica.current:
                    yield f"{what}: the copy on {replica.name} is {'away' if replica.offline else 'behind'}"
            if 0 < stream.config.max_bytes * _FULL_SHARE < stream.state.bytes:
                yield f"{what} is full: start its trainer, or give it more room (server.engine_max_bytes)"


def look(nodes: Sequence[str], user: EngineUser) -> EngineStatus:
    """Ask everybody; takes some seconds.

    Args:
        nodes: `tls://host:port` of each.
        user: of the role "trainer".

    Raises:
        MissingExtraError: the extra `engine` is not installed.
    """
    status = EngineStatus()
    until = time.monotonic() + _REACH_S
    visits = {node: _Visit([node], user, _nothing) for node in nodes}
    for node, visit in visits.items():
        status.nodes[node] = visit.end(until)
    if reached := [node for node, problem in status.nodes.items() if not problem]:
        visit = _Visit(reached, user, lambda client: _gather(client, user, status))
        problem = visit.end(time.monotonic() + _GATHER_S)
        status.nodes.update(dict.fromkeys(reached, problem))
    return status


def forget(run: str, sites: Sequence[str], nodes: Sequence[str], user: EngineUser) -> list[str]:
    """Delete a run's streams; returns the sites whose stream is still there.

    Args:
        run: its name.
        sites: with a stream of it; "" is the hub.
        nodes: `tls://host:port` of those that answer.
        user: of the role "admin".
    """
    left = list(sites)

    async def delete(client: Client) -> None:
        for site in sites:
            api = await _jetstream(client, user, token(site) if site else "")
            with contextlib.suppress(JetStreamError, TimeoutError):
                await api.ask(f"STREAM.DELETE.{stream_name(run)}", _ASK_S)
                left.remove(site)

    _Visit(nodes, user, delete).end(time.monotonic() + _GATHER_S)
    return left


class _Visit:
    """Connects to one of some nodes, and does something there, once."""

    def __init__(self, nodes: Sequence[str], user: EngineUser, do: Callable[[Client], Awaitable[None]]) -> None:
        self._is_done = threading.Event()

        async def attend(client: Client) -> None:
            await do(client)
            self._is_done.set()

        self._connection = EngineConnection(nodes, user, attend, says_itself=False)

    def end(self, until: float) -> str:
        """What kept it from being done in time; empty: nothing did."""
        try:
            while not self._is_done.wait(0.02):
                self._connection.check()
                if time.monotonic() > until:
                    return "does not answer"
        except CredentialsError as error:
            return str(error)
        finally:
            self._connection.close(0)
        return ""


async def _nothing(client: Client) -> None: ...


async def _gather(client: Client, user: EngineUser, status: EngineStatus) -> None:
    heard: dict[tuple[str, str, int], Gateway] = {}

    def note(message: Msg) -> None:
        _, run, _, site = message.subject.split(".")
        with contextlib.suppress(msgspec.DecodeError):
            state = msgspec.msgpack.decode(message.data, type=GatewayState)
            if len(heard) < _MAX_GATEWAYS:
                new = Gateway(name_of_token(run), name_of_token(site), state)
                heard.setdefault((run, site, state.gateway), new).say(state, time.monotonic())

    await hear(client, "tmrl.*.g.*", note)
    listened = time.monotonic() + _LISTEN_S
    hub = await _jetstream(client, user, "")
    runs = await _add_streams(hub, status)
    await asyncio.sleep(listened - time.monotonic())
    leaves = {site for (_, site, _), gateway in heard.items() if gateway.state.domain == site}
    apis = [await _jetstream(client, user, site) for site in sorted(leaves)]
    found = await asyncio.gather(*(_add_streams(api, status) for api in apis))
    for run in runs.union(*found, (run for run, _, _ in heard)):
        with contextlib.suppress(JetStreamError, TimeoutError, msgspec.DecodeError):  # or it holds a broker's answer
            answer = await hub.ask(f"STREAM.MSG.GET.KV_{SEATS}", _ASK_S, last_by_subj=f"$KV.{SEATS}.{run}")
            seat = msgspec.msgpack.decode(answer.message.data if answer.message else b"", type=TrainerSeat)
            status.trainers[name_of_token(run)] = seat.name
    status.gateways = [gateway for _, gateway in sorted(heard.items(), key=lambda item: item[0])]


async def _jetstream(client: Client, user: EngineUser, site: str) -> JetStream:
    """That of the hub, or of a site's leaf (a token)."""
    api = JetStream(client, user.name, site)
    await api.open()
    return api


async def _add_streams(api: JetStream, status: EngineStatus) -> set[str]:
    """Ask for its streams; returns their runs, as tokens."""
    runs: dict[str, Stream | None] = {}
    site = name_of_token(api.domain)
    try:
        while True:
            known = len(runs)
            answer = await api.ask("STREAM.LIST", _ASK_S, offset=known, subject="tmrl.*.s.>")
            found = [msgspec.convert(stream, Stream) for stream in answer.streams or ()]
            named = {**dict.fromkeys(answer.missing or ()), **{stream.config.name: stream for stream in found}}
            runs |= {name.removeprefix("tmrl-"): stream for name, stream in named.items()}
            if len(runs) == known or len(runs) >= answer.total:
                break
    except (JetStreamError, TimeoutError, msgspec.ValidationError):
        status.silent.append(site)
    status.streams.update({(name_of_token(run), site): stream for run, stream in runs.items()})
    return set(runs)


def place(site: str) -> str:
    """Where a stream is."""
    return f"the leaf of {site}" if site else "the hub"
