"""Seats at the server, and the rules that decide which peers get them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from tmrl_like.base.budgets import Bucket
from tmrl_like.server.newest_policy import SentPolicy
from tmrl_like.server.waiting import WaitingMessages
from tmrl_like.transport.base import Identity
from tmrl_like.wire import messages as m

_RETRY_AFTER_S = 2.0
_BEATS, _BEATS_PER_S = 100, 20.0  # heartbeats of a worker that are relayed: burst, and rate


@dataclass(slots=True)
class Seat:
    """The seat of a connected peer. `key` is the name of the key that it proved to hold."""

    peer: bytes
    key: str
    hello: m.Hello
    seen_at: float
    malformed: int = 0  # number of malformed messages

    @property
    def who(self) -> tuple[str, str]:
        return self.hello.role, self.hello.name

    def is_of_process(self, other: Seat) -> bool:
        """Whether two connections belong to the same process."""
        return (
            self.hello.incarnation == other.hello.incarnation
            and self.who == other.who
            and self.key == other.key
        )

    def shares_file_with(self, other: Seat) -> bool:
        """Whether two peers keep their weights in the same file."""
        return self.hello.model_file != "" and self.hello.model_file == other.hello.model_file


@dataclass(slots=True)
class WorkerSeat(Seat):
    """The seat of a worker."""

    policy: SentPolicy = field(default_factory=SentPolicy)
    beats: Bucket = field(default_factory=lambda: Bucket(_BEATS, _BEATS_PER_S))
    newest_beat: m.Beat | None = None
    beat_at: float = 0.0


@dataclass(slots=True)
class TrainerSeat(Seat):
    """The seat of a trainer; `feed` is that of `Welcome`."""

    waiting: WaitingMessages = field(default_factory=WaitingMessages)
    feed: int = field(default_factory=lambda: secrets.randbits(62) + 1)

    def sits_beside(self, other: TrainerSeat) -> bool:
        """Whether two trainers are different ranks of one group."""
        own, others = self.hello.rank, other.hello.rank
        return own.group != 0 and own.group == others.group and own.number != others.number


@dataclass(slots=True)
class WatcherSeat(Seat):
    """The seat of a watcher."""

    newest_view: int = 0  # number of the newest view that it was sent


SEATS: dict[str, type[Seat]] = {
    "worker": WorkerSeat,
    "trainer": TrainerSeat,
    "watcher": WatcherSeat,
}
"""The seats of each role."""


def may_be(identity: Identity, role: str) -> bool:
    """Whether a key may play a role; a key for trainers may also be used by watchers."""
    return role in identity.roles or (role == "watcher" and "trainer" in identity.roles)


def not_for(identity: Identity, role: str) -> m.Refusal:
    """Return the refusal of a peer whose key may not play its role."""
    return m.Refusal(
        f"the key {identity.name!r} is not for a {role}; on the server's machine run "
        f"`tmrl-like keys invite NAME --role {role}`"
    )


def later(reason: str) -> m.Refusal:
    """Return a temporary refusal: the peer may try again, for example when another has left."""
    return m.Refusal(reason, _RETRY_AFTER_S)


def other_version(found: int) -> m.Refusal:
    """Return the refusal of a peer with another wire version."""
    newer, older = ("server", "peer") if found < m.WIRE_VERSION else ("peer", "server")
    return m.Refusal(
        f"this peer speaks wire version {found}, the server {m.WIRE_VERSION}: upgrade tmrl_like on "
        f"the {older} to that of the {newer}"
    )
