"""`run --proof`: tests whether the trained policy is better than an untrained one, with numbers and
a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tmrl_like.base.files import write_atomically
from tmrl_like.cli.tables import SUMMARY_COLUMNS, mean_and_std, print_table, summary_row
from tmrl_like.config.settings import ProofSection
from tmrl_like.types import EpisodeStats


def prove(
    untrained: Sequence[EpisodeStats],
    trained: Sequence[EpisodeStats],
    section: ProofSection,
    folder: Path,
) -> bool:
    """Compare test episodes, print the results and the verdict, and write them to the run's folder,
    as proof.json and proof.png. Returns whether the proof holds.
    """
    passed, reason = judge(untrained, trained, section)
    print_table(
        "proof",
        SUMMARY_COLUMNS,
        [summary_row("untrained", untrained), summary_row("trained", trained)],
    )
    print(f"{'proof passed' if passed else 'proof FAILED'}: {reason}")
    content = {"passed": passed, "reason": reason, "untrained": untrained, "trained": trained}
    write_atomically(
        folder / "proof.json", msgspec.json.format(msgspec.json.encode(content), indent=1)
    )
    # imports numpy, which `run` itself starts without
    from tmrl_like.metrics.curves import plot_returns

    levels = {"untrained": mean_and_std(untrained), "trained": mean_and_std(trained)}
    picture = folder / "proof.png"
    if plot_returns(picture, [folder], levels):
        print(f"picture: {picture}")
    return passed


def judge(
    untrained: Sequence[EpisodeStats], trained: Sequence[EpisodeStats], section: ProofSection
) -> tuple[bool, str]:
    """Return whether the proof holds, with the reason in a sentence.

    It holds if the trained policy's mean return is better by `margin` standard errors of the
    difference (from the variances of both samples, Welch), and `min_terminated_share` of its
    episodes reached a terminal state.
    """
    (low, low_std), (high, high_std) = mean_and_std(untrained), mean_and_std(trained)
    error = math.sqrt(low_std**2 / len(untrained) + high_std**2 / len(trained))
    is_better = high > low and high - low >= section.margin * error
    distance = f"{(high - low) / error:.1f}" if error else "many"
    said = (
        f"mean return {high:.3f} against {low:.3f}: {distance} standard errors better, "
        f"{section.margin:g} are asked for"
    )
    share = sum(e.terminated for e in trained) / len(trained)
    if section.min_terminated_share:
        said += (
            f"; a terminal state in {share:.0%} of the episodes, "
            f"{section.min_terminated_share:.0%} are asked for"
        )
    return is_better and share >= section.min_terminated_share, said
