"""What the parts call things at the brokers: subjects, streams, and who may use which.

    tmrl.RUN.s.PART.SITE.WORKER   samples, which the stream tmrl-RUN keeps
    tmrl.RUN.b.PART.SITE.WORKER   signs of life
    tmrl.RUN.a.SITE               acknowledgements and dismissals for a site's workers
    tmrl.RUN.p                    policies, for all gateways
    tmrl.RUN.g.SITE               the state of a site's gateway

RUN, SITE and WORKER are tokens: names as `token` writes them. A site's rights name the site, so that no site can
send or hear what is another's.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, TypeAlias
from urllib.parse import unquote

import msgspec

from tmrl_like.base.text import one_line
from tmrl_like.types import Count
from tmrl_like.wire.messages import Name, share_of

PARTS = 16
SEATS = "tmrl-seats"
"""The bucket with the trainer's seat of each run."""
CLAIMS_UPDATE = "$SYS.REQ.CLAIMS.UPDATE"
"""Where nodes take another JWT of the account, from the brokers' own account."""
_LONGEST_TOKEN = 64

Token: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_=-]{0,64}\Z")]


class GatewayState(msgspec.Struct, frozen=True):
    """What a gateway says of itself, on `gateway_subject`, as msgpack."""

    site: Name
    domain: Token = ""  # JetStream's, of the node that it is connected to; empty: the hub's
    workers: int = 0  # in their seats now
    samples: int = 0  # since its start
    packets: int = 0
    policy_wanted: bool = False
    gateway: int = 0  # random: tells the gateways of a site apart
    unheard: bool = False  # nobody leads the stream that it publishes to


class TrainerSeat(msgspec.Struct, frozen=True):
    """Who has the trainer's seat of a run: the value in the bucket, as msgpack."""

    name: Name
    incarnation: Count
    group: Count = 0  # names the ranks that have it together; 0: one trainer


@functools.lru_cache(10_000)
def token(name: str) -> str:
    """A name as one part of a subject: letters, digits, `_` and `-` as they are, other bytes of its UTF-8 as =XX.

    What would be longer than 64 characters, or empty, is `==` and a hash. Different names have different tokens.
    """
    text = re.sub(rb"[^A-Za-z0-9_-]", lambda found: b"=%02X" % found[0][0], name.encode()).decode()
    return text if 0 < len(text) <= _LONGEST_TOKEN else f"=={blake2b(name.encode(), digest_size=16).hexdigest()}"


def name_of_token(text: str) -> str:
    """The name that `token` wrote; a hash stays one."""
    return text if text.startswith("==") else one_line(unquote(text.replace("=", "%")))


def part_of(worker: str) -> int:
    """Which of the `PARTS` a worker's samples belong to."""
    return share_of(worker, PARTS)


def rank_of(worker: str, size: int) -> int:
    """Which of so many ranks reads the part that a worker's samples belong to."""
    return part_of(worker) % size


def samples_subject(run: str, site: str, worker: str) -> str:
    """Where a worker's bundles go."""
    return f"tmrl.{token(run)}.s.{part_of(worker)}.{token(site)}.{token(worker)}"


def beats_subject(run: str, site: str, worker: str) -> str:
    """Where a worker's signs of life go."""
    return f"tmrl.{token(run)}.b.{part_of(worker)}.{token(site)}.{token(worker)}"


def samples_of_part(run: str, part: int | None = None) -> str:
    """All samples of a part, or of all parts; with them as its subjects, the stream's."""
    return f"tmrl.{token(run)}.s.{'>' if part is None else f'{part}.>'}"


def beats_of_part(run: str, part: int | None = None) -> str:
    """All signs of life of a part, or of all parts; a leaf passes nothing on to who subscribes `>` instead."""
    return f"tmrl.{token(run)}.b.{'*' if part is None else part}.*.*"


def acks_subject(run: str, site: str) -> str:
    """Where the trainer's acknowledgements and dismissals for a site's workers go."""
    return f"tmrl.{token(run)}.a.{token(site)}"


def policy_subject(run: str) -> str:
    """Where the trainer's policies go."""
    return f"tmrl.{token(run)}.p"


def gateway_subject(run: str, site: str | None = None) -> str:
    """Where a site's gateway says how it is; None: all of them."""
    return f"tmrl.{token(run)}.g.{'*' if site is None else token(site)}"


def stream_name(run: str) -> str:
    """The stream of a run's samples."""
    return f"tmrl-{token(run)}"


def inbox(name: str) -> str:
    """Where the brokers answer a user of that name: the prefix of its inboxes."""
    return f"_INBOX.{token(name)}"


def leaf_inbox(name: str, site: str) -> str:
    """Where the leaf of a site (a token) answers a user of that name; it has a right to no other inbox."""
    return f"{inbox(name)}.leaf.{site}"


@dataclass(frozen=True)
class Rights:
    """What a user's JWT allows it; nothing else."""

    publish: tuple[str, ...]
    hear: tuple[str, ...]
    connections: tuple[str, ...] = ("STANDARD",)


_STREAM_REQUESTS = (  # of the trainer, whose run it is; it may neither delete nor update a stream
    "INFO",
    "STREAM.CREATE.*",
    "STREAM.INFO.*",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.PURGE.*",
    "STREAM.MSG.GET.*",
    "DIRECT.GET.*",
    "DIRECT.GET.*.>",
    "CONSUMER.CREATE.>",
    "CONSUMER.INFO.*.*",
    "CONSUMER.DELETE.*.*",
    "CONSUMER.MSG.NEXT.*.*",
)


def rights(role: str, name: str) -> Rights:
    """What a user of that role and name may do.

    The roles "system" (tell the brokers about a revocation) and "admin" (delete streams) are the authority's own.

    A site cannot make streams, and the trainer can: one that republishes would let a site pass samples off as policies.
    """
    own = f"{inbox(name)}.>"
    if role == "site":
        site = token(name)
        up = (f"tmrl.*.s.*.{site}.*", f"tmrl.*.b.*.{site}.*", f"tmrl.*.g.{site}")
        return Rights(up, (f"tmrl.*.a.{site}", "tmrl.*.p", own))
    if role == "leaf":  # a site's own node, across the long link: no samples, which the trainer asks its stream for
        site = token(name)
        up = (f"tmrl.*.b.*.{site}.>", f"tmrl.*.g.{site}", f"_INBOX.*.leaf.{site}.>")
        return Rights(up, (f"tmrl.*.a.{site}", "tmrl.*.p", f"$JS.{site}.API.>"), ("LEAFNODE",))
    if role == "trainer":
        requests = (f"$JS.{api}.{request}" for api in ("API", "*.API") for request in _STREAM_REQUESTS)
        publish = ("tmrl.*.a.*", "tmrl.*.p", f"$KV.{SEATS}.*", *requests)
        return Rights(publish, ("tmrl.*.s.>", "tmrl.*.b.>", "tmrl.*.g.*", own))
    if role == "admin":
        return Rights(("$JS.API.STREAM.DELETE.*", "$JS.*.API.STREAM.DELETE.*"), (own,))
    assert role == "system", role
    return Rights((CLAIMS_UPDATE,), (own,))
