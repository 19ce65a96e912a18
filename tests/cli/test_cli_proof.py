"""The proof at the end of a run."""

import json

import pytest
from kit.episodes import episode

from tmrl_like.cli import proof
from tmrl_like.cli.tables import summary_row
from tmrl_like.config.settings import ProofSection


def episodes(*returns, terminated=False):
    return [episode(test=True, return_=return_, terminated=terminated) for return_ in returns]


def test_means_and_deviations_are_the_samples_own():
    both = episodes(1.0, terminated=True) + episodes(3.0)
    assert summary_row("x", both) == ["x", "2", "2.000 ± 1.414", "50%", "10.0"]
    assert summary_row("x", episodes(3.0))[2] == "3.000"  # one value has no spread


@pytest.mark.parametrize(
    ("untrained", "trained", "passed"),
    [
        ([-10, 0, -20], [-5, 5, -15], False),
        ([-10, -10, -10], [-9, -9, -9], True),
    ],
)
def test_a_proof_holds_only_if_the_mean_is_better_by_the_margin(untrained, trained, passed):
    is_better, _ = proof.judge(episodes(*untrained), episodes(*trained), ProofSection(episodes=3))
    assert is_better is passed


def test_a_proof_asks_for_the_share_of_terminal_states_and_is_saved(tmp_path, capsys):
    untrained = episodes(-10.0, -11.0)
    trained = episodes(-1.0, terminated=True) + episodes(-1.1)
    assert proof.judge(untrained, trained, ProofSection(min_terminated_share=0.5))[0]
    assert not proof.prove(untrained, trained, ProofSection(min_terminated_share=0.6), tmp_path)
    assert "a terminal state in 50% of the episodes, 60% are asked for" in capsys.readouterr().out
    assert json.loads((tmp_path / "proof.json").read_text())["trained"][0]["return"] == -1.0
