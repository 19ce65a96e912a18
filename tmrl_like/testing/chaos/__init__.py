"""Break your own pipeline: kill, freeze, cut, delay and corrupt its parts, then count what arrived.

====================  ================================================================================
`LinkProxy`           a TCP proxy that cuts, freezes, refuses, delays and corrupts on command
`Part`                a process that is killed, frozen and started again, and leaves nothing behind
`NumberedEnv`         an environment whose samples are numbered
`Ledger`, `audit`     what a memory was given, against what was produced: lost, doubled, out of order
`Schedule`            random actions at random times, from a seed
====================  ================================================================================

Docs: `docs/guide/chaos.md`.
"""

from tmrl_like.testing.chaos.ledger import NUMBERED_SPACES, Audit, Ledger, LedgerMemory, NumberedEnv, audit, produced
from tmrl_like.testing.chaos.monkey import SEED_VARIABLE, Schedule, chaos_seed, log_uniform
from tmrl_like.testing.chaos.parts import Part
from tmrl_like.testing.chaos.proxy import LinkProxy

__all__ = [
    "NUMBERED_SPACES",
    "SEED_VARIABLE",
    "Audit",
    "Ledger",
    "LedgerMemory",
    "LinkProxy",
    "NumberedEnv",
    "Part",
    "Schedule",
    "audit",
    "chaos_seed",
    "log_uniform",
    "produced",
]
