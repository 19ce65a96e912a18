"""`run --proof`: tests whether the trained policy is better than an untrained one, with numbers and
a verdict.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from tmrl_like.cli.tables import SUMMARY_COLUMNS, mean_and_std, print_table, summary_row
from tmrl_like.config.settings import ProofSection
from tmrl_like.types import EpisodeStats


@dataclass(frozen=True)
class Verdict:
    """Whether the proof holds, with the reason in a sentence."""

    passed: bool
    reason: str


def judge(
    untrained: Sequence[EpisodeStats], trained: Sequence[EpisodeStats], section: ProofSection
) -> Verdict:
    """Compare test episodes.

    The proof holds if the trained policy's mean return is better by `margin` standard errors of the
    difference (from the variances of both samples, Welch), and `min_terminated_share` of its
    episodes reached a terminal state.
    """
    if min(len(untrained), len(trained)) < section.episodes:
        return Verdict(
            False,
            f"only {len(untrained)} untrained and {len(trained)} trained episodes were finished",
        )
    (low, low_std), (high, high_std) = (
        mean_and_std([e.return_ for e in group]) for group in (untrained, trained)
    )
    error = math.sqrt(low_std**2 / len(untrained) + high_std**2 / len(trained))
    better = high > low and high - low >= section.margin * error
    distance = f"{(high - low) / error:.1f}" if error else "many"
    said = (
        f"mean return {high:.3f} against {low:.3f}: {distance} standard errors better, "
        f"{section.margin:g} are asked for"
    )
    share = sum(e.terminated for e in trained) / len(trained)
    enough = share >= section.min_terminated_share
    if section.min_terminated_share:
        said += (
            f"; a terminal state in {share:.0%} of the episodes, "
            f"{section.min_terminated_share:.0%} are asked for"
        )
    return Verdict(better and enough, said)


def show(
    untrained: Sequence[EpisodeStats], trained: Sequence[EpisodeStats], verdict: Verdict
) -> None:
    """Print the results of both policies, and the verdict."""
    rows = [summary_row("untrained", untrained), summary_row("trained", trained)]
    print_table("proof", SUMMARY_COLUMNS, rows)
    print(f"{'proof passed' if verdict.passed else 'proof FAILED'}: {verdict.reason}", flush=True)


def save(
    path: Path, untrained: Sequence[EpisodeStats], trained: Sequence[EpisodeStats], verdict: Verdict
) -> None:
    """Write the numbers as JSON."""
    content = asdict(verdict) | msgspec.to_builtins({"untrained": untrained, "trained": trained})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
