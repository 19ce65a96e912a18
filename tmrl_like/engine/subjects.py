"""What the parts call things at an engine's nodes: subjects and streams.

    tmrl.RUN.s.PART.SITE.WORKER   samples, which the stream tmrl-RUN keeps
    tmrl.RUN.b.PART.SITE.WORKER   signs of life
    tmrl.RUN.a.SITE               acknowledgements and dismissals for a site's workers
    tmrl.RUN.p                    policies, for all gateways
    tmrl.RUN.g.SITE               the state of a site's gateway

RUN, SITE and WORKER are tokens: names as `token` writes them. The site is the name of the gateway's user, so that its
rights can name it: no site sends or hears what is another's. docs/guide/engine.md has the rights of each role.
"""

from __future__ import annotations

import functools
import re
from hashlib import blake2b

import msgspec

from tmrl_like.types import Count
from tmrl_like.wire.messages import Name, share_of

PARTS = 16
SEATS = "tmrl-seats"
"""The bucket with the trainer's seat of each run."""
_LONGEST_TOKEN = 64


class GatewayState(msgspec.Struct, frozen=True):
    """What a gateway says of itself, on `gateway_subject`, as msgpack."""

    policy_wanted: bool = False
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
    """All signs of life of a part, or of all parts."""
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
    """Where the nodes answer a user of that name: the prefix of its inboxes."""
    return f"_INBOX.{token(name)}"
