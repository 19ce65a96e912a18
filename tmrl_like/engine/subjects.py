"""What the parts call things at an engine's nodes: subjects, the stream, the bucket.

    tmrl.RUN.s.SITE.WORKER.SHARE   samples, which the stream tmrl-RUN keeps
    tmrl.RUN.b.SITE.WORKER.SHARE   signs of life
    tmrl.RUN.a.SITE                acknowledgements and dismissals for a site's workers
    tmrl.RUN.p                     policies; each second which training takes samples
    tmrl.RUN.g.SITE                the state of a site's gateway

RUN, SITE and WORKER are tokens: names as `token` writes them. The site is the name of the gateway's
user, so that its rights can name it: no site sends or hears what is another's. docs/guide/engine.md
has the rights of each role.

SHARE says whose the worker is, however many ranks there are: the digits of `share_of(worker,
720720)`, a number that each size from 1 to 16 divides. One subject with wildcards holds the workers
of a rank, and these are the workers that a server would give it.
"""

from __future__ import annotations

import functools
import re
from hashlib import blake2b

import msgspec

from tmrl_like.types import Count
from tmrl_like.wire.messages import share_of

MAX_RANKS = 16
BUCKET = "tmrl-seats"
"""Holds the trainer's seat of each run."""
_LONGEST_TOKEN = 64
_DIGITS = ((2, 4), (3, 2), (5, 1), (7, 1), (11, 1), (13, 1))
"""Primes, and how many digits of a share are written to that base, the lowest first."""
_SHARES = 720_720  # the least number that all sizes up to `MAX_RANKS` divide


class GatewayState(msgspec.Struct, frozen=True):
    """What a gateway says of itself, on `gateway_subject`, as msgpack."""

    version: Count = 0  # of the newest policy that came whole
    published_at_s: float = 0.0


@functools.lru_cache(10_000)
def token(name: str) -> str:
    """A name as one part of a subject: letters, digits, `_` and `-` as they are, other bytes of its
    UTF-8 as =XX.

    What would be longer than 64 characters, or empty, is `==` and a hash. Different names have
    different tokens.
    """
    text = re.sub(rb"[^A-Za-z0-9_-]", lambda found: b"=%02X" % found[0][0], name.encode()).decode()
    return (
        text
        if 0 < len(text) <= _LONGEST_TOKEN
        else f"=={blake2b(name.encode(), digest_size=16).hexdigest()}"
    )


def feed_of(training: str) -> int:
    """The `feed` of a training at all gateways, whichever process goes on with it; 0: it has no
    name.
    """
    return int.from_bytes(blake2b(training.encode(), digest_size=7).digest()) if training else 0


@functools.lru_cache(10_000)
def worker_tokens(worker: str) -> str:
    """WORKER.SHARE of a worker."""
    share = share_of(worker, _SHARES)
    places = (
        str(share // base**place % base) for base, digits in _DIGITS for place in range(digits)
    )
    return ".".join((token(worker), *places))


def _share_of_rank(number: int, size: int) -> str:
    """What the tokens of all workers of a rank match."""
    tokens = []
    for base, digits in _DIGITS:
        for place in range(digits):
            is_told = size % base ** (place + 1) == 0
            tokens.append(str(number // base**place % base) if is_told else "*")
    return ".".join(tokens)


def samples_subject(run: str, site: str, worker: str) -> str:
    """Where a worker's packets go."""
    return f"tmrl.{token(run)}.s.{token(site)}.{worker_tokens(worker)}"


def beats_subject(run: str, site: str, worker: str) -> str:
    """Where a worker's signs of life go."""
    return f"tmrl.{token(run)}.b.{token(site)}.{worker_tokens(worker)}"


def all_samples(run: str) -> str:
    """All samples: what the stream keeps."""
    return f"tmrl.{token(run)}.s.>"


def samples_of_rank(run: str, number: int, size: int) -> str:
    """The samples of a rank's workers."""
    return f"tmrl.{token(run)}.s.*.*.{_share_of_rank(number, size)}"


def beats_of_rank(run: str, number: int, size: int) -> str:
    """The signs of life of a rank's workers; rank 0 hears all of them."""
    return f"tmrl.{token(run)}.b.*.*.{_share_of_rank(number, size if number else 1)}"


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
