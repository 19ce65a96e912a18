"""What a link and its child process say to each other: typed msgpack, length first (4 bytes, big-endian).

A line is one connection between a peer and the server, numbered by the child; a new connection has a new
number, so that nothing meant for an old one reaches it. That holds across children, too: whoever comes first
after a crash must not get the seat that the server keeps for the number of another.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tmrl_like.transport.base import TransportOptions

MAX_LOCAL_BYTES = 512 * 1024


class RelayJob(msgspec.Struct, frozen=True, tag=True):
    """Everything that the relay in the child needs; it travels through the child's standard input."""

    host: str
    port: int
    tls_key: str
    tls_certificate: str
    password: str
    curve_public: str
    curve_secret: str
    keys_dir: str
    lines_from: int  # numbers its lines from here on: those of the child before are never given again
    options: TransportOptions


class EndpointJob(msgspec.Struct, frozen=True, tag=True):
    """The same for an endpoint."""

    host: str
    port: int
    tls_certificate: str
    password: str
    curve_public: str
    curve_secret: str
    server_curve_public: str
    options: TransportOptions


Job: TypeAlias = RelayJob | EndpointJob


class Start(msgspec.Struct, frozen=True):
    """First thing a child reads."""

    parent: int  # its process id
    local_port: int  # where the parent waits
    token: str  # proves to the parent that it is its child that calls
    job: Job


class _Said(msgspec.Struct, array_like=True, tag=True):
    pass


class Give(_Said):
    """Send a piece down a line. `last`: it completes a message; say so when it was acknowledged."""

    line: int
    piece: memoryview
    last: bool


class Hold(_Said):
    """Do not read from the line for now: enough of its messages wait here."""

    line: int


class Release(_Said):
    """Read from the line again."""

    line: int


class Drop(_Said):
    """Cut the line."""

    line: int


class Stop(_Said):
    """Close everything and end."""


Command: TypeAlias = Give | Hold | Release | Drop | Stop


class Ready(_Said):
    """The child works; a relay listens at `port`."""

    port: int


class Failed(_Said):
    """The relay cannot listen."""

    taken: bool
    reason: str


class Joined(_Said):
    """Both sides of the line proved themselves (again, when the peer's roles were changed)."""

    line: int
    name: str = ""
    roles: tuple[str, ...] = ()


class Took(_Said):
    """A piece arrived."""

    line: int
    piece: memoryview


class Acknowledged(_Said):
    """The other side has the oldest message that was under way."""

    line: int


class Left(_Said):
    """The line is no more. `revoked`: nothing of what it said counts any more."""

    line: int
    revoked: bool = False


class Refused(_Said):
    """A connection ended without having proved a valid key."""


class Denied(_Said):
    """There is no point in dialling on."""

    reason: Literal["key refused", "other server"]


Event: TypeAlias = Ready | Failed | Joined | Took | Acknowledged | Left | Refused | Denied

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
