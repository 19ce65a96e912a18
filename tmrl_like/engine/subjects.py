"""Names at an engine's nodes: subjects, the stream, the bucket.

    tmrl.RUN.s.SITE.WORKER   samples, which the stream tmrl-RUN stores
    tmrl.RUN.b.SITE.WORKER   signs of life
    tmrl.RUN.a.SITE          acknowledgements and dismissals for a site's workers
    tmrl.RUN.p               policies; and, each second, which training takes the samples
    tmrl.RUN.g.SITE          the state of a site's gateway

RUN, SITE and WORKER are names converted by `token`. The site is the name of the gateway's user, so
that its rights can contain it: no site can send or receive the messages of another.
docs/guide/engine.md lists the rights of each role.
"""

from __future__ import annotations

import functools
import re
from hashlib import blake2b

import msgspec

from tmrl_like.types import Count

BUCKET = "tmrl-seats"
"""Name of the bucket that holds the trainer seat of each run."""
SAMPLES, BEATS, ANSWERS, POLICIES, GATEWAYS = "s", "b", "a", "p", "g"
"""Kinds of subjects."""
_LONGEST_TOKEN = 64


class GatewayState(msgspec.Struct, frozen=True):
    """The state that a gateway reports, as msgpack."""

    version: Count = 0  # of the newest complete policy
    published_at_s: float = 0.0


@functools.lru_cache(10_000)
def token(name: str) -> str:
    """Convert a name to a part of a subject: letters, digits, `_` and `-` stay, other bytes of its
    UTF-8 form become =XX.

    If the result is longer than 64 characters, or empty, it is `==` and a hash instead. Different
    names have different tokens.
    """
    text = re.sub(rb"[^A-Za-z0-9_-]", lambda found: b"=%02X" % found[0][0], name.encode()).decode()
    return (
        text
        if 0 < len(text) <= _LONGEST_TOKEN
        else f"=={blake2b(name.encode(), digest_size=16).hexdigest()}"
    )


def feed_of(training: str) -> int:
    """Return the `feed` of a training, the same at all gateways and for all processes that resume
    it; 0 if it has no name.
    """
    return int.from_bytes(blake2b(training.encode(), digest_size=7).digest()) if training else 0


@functools.lru_cache(10_000)
def subject_of(run: str, kind: str, *names: str | None) -> str:
    """Return a subject of a run: its kind, then the names of a site and of a worker; None: any."""
    parts = ("*" if name is None else token(name) for name in names)
    return ".".join(("tmrl", token(run), kind, *parts))


def stream_name(run: str) -> str:
    """Return the name of the stream of a run's samples."""
    return f"tmrl-{token(run)}"


def inbox(name: str) -> str:
    """Return the prefix of a user's inboxes, where the nodes send their answers."""
    return f"_INBOX.{token(name)}"
