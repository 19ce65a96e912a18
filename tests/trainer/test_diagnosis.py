"""The diagnosis of recorded rounds, one symptom at a time; tests/learning checks it in real
training.
"""

import math

import numpy as np
import pytest
from kit.episodes import episode

from tmrl_like.trainer.diagnosis import LEARNING, SIGNS, TOO_EARLY, Diagnosis

WELL = {  # a round of training with the drone, after half a minute
    "batch_size": 128,
    "memory_size": 50_000,
    "gamma": 0.95,
    "max_entropy": 2 * math.log(2.0),
    "training_steps_total": 3000,
    "training_steps_per_s": 180.0,
    "round_duration_s": 1.2,
    "idle_s": 0.1,
    "env_steps_total": 1200,
    "training_steps_per_env_step_round": 3.9,
    "memory_transitions": 1150,
    "policy_age_p50_s": 0.2,
    "loss_critic": 0.0164,
    "q_mean": -2.68,
    "entropy_nats": -1.87,
    "entropy_coef": 0.0132,
    "observation_moves_share": 0.998,
    "action_spread": 0.496,
    "policy_change": 0.0273,
    "observation_largest": 1.5,
    "observation_spread": 1.49,
    "critic_spread": 0.9,
    "critic_change": 0.04,
    "reward_recent_mean": -0.6,
    "reward_low": -1.3,
    "reward_high": -0.005,
    "value_low": -26.0,
    "value_high": -0.1,
}


def episodes(returns, steps=100, **said):
    """Return episodes with these returns; `steps`: one length for all, or one for each."""
    said, lengths = {"terminated": False} | said, np.broadcast_to(steps, len(returns))
    return [
        episode(return_=value, steps=length, **said)
        for value, length in zip(returns, lengths, strict=True)
    ]


FLAT = [-60.0, -31.0, -75.0, -44.0, -52.0, -38.0, -66.0, -47.0, -58.0, -41.0, -63.0, -50.0]
RISES = [-84.3, -30.9, -3.3, -1.9, -3.3, -7.1, -5.3, -1.6, -1.0, -4.9]


def said(rounds=8, returns=FLAT, of_episodes=None, **changes):
    """Return the diagnosis after a number of equal rounds."""
    diagnosis = Diagnosis()
    diagnosis.add(episodes(returns, **of_episodes or {}))
    for _ in range(rounds):
        line = diagnosis.judge(WELL | changes)
    return line


OLD = {"training_steps_total": 20_000}

FAULTS = {
    "still": {"observation_moves_share": 0.0},
    "reward": {"reward_low": 0.0, "reward_high": 0.0},
    "reward too small": {"reward_low": -1e-5, "reward_high": -1e-6},
    "reward too large": {"value_low": -26_000.0},
    "observation too large": {"observation_largest": 1640.0},
    "observation too small": {"observation_spread": 1.2e-6},
    "short episodes": {"of_episodes": {"steps": 3}},
    "time limit": {"of_episodes": {"steps": 25, "terminated": True}},
    "gamma": {"gamma": 0.0},
    "policy stays": {"policy_change": 0.0},
    "old policy": {"policy_age_p50_s": 60.0},
    "memory": {"memory_size": 150},
    "few training steps": {"training_steps_per_env_step_round": 0.01},
    "values": {"q_mean": 210.0},
    "critics": {"critic_spread": 0.0},
    "critics stay": {"critic_change": 0.0},
    "random": {"entropy_nats": 1.37, "training_steps_total": 5000},
    "ignores": {"action_spread": 0.0},
}


@pytest.mark.parametrize("name", SIGNS)
def test_each_sign_is_named_when_it_lasts(name):
    line = said(**FAULTS[name])
    assert line.startswith("not learning because " + SIGNS[name][1].partition("{")[0])
    assert "{" not in line
    assert SIGNS[name][1].partition("{")[0] not in said(rounds=2, **FAULTS[name])
    assert (
        said(**{**FAULTS[name], "returns": RISES, "of_episodes": {"steps": [100, 90, *[12] * 8]}})
        == LEARNING
    )


def test_a_training_whose_return_has_risen_learns_and_goes_on_to_when_it_has_converged():
    diagnosis = Diagnosis()
    diagnosis.add(episodes(RISES[:9]))
    assert diagnosis.judge(WELL) == TOO_EARLY
    diagnosis.add(episodes(RISES[9:]))
    assert diagnosis.judge(WELL) == LEARNING
    diagnosis.add(episodes([-3.0, -2.0, -4.0, -1.0, -2.5] * 40))
    assert diagnosis.judge(WELL | {"training_steps_total": 10**6, "policy_change": 0.0}) == LEARNING
    diagnosis.add(episodes([-55.0] * 10))
    assert diagnosis.judge(WELL | {"training_steps_total": 10**6}).startswith(
        "not learning because the return has fallen: -55 in the"
    )


def test_episodes_that_a_fault_cut_short_do_not_raise_the_return():
    for fault, line in (("RuntimeError: no answer", TOO_EARLY), ("", LEARNING)):
        diagnosis = Diagnosis()
        diagnosis.add(episodes(FLAT[:2]))
        diagnosis.add(episodes([-2.0] * 20, steps=5, fault=fault))
        assert diagnosis.judge(WELL) == line


def test_a_return_that_stays_is_said_at_last_and_a_young_training_is_waited_for():
    assert said(rounds=40) == TOO_EARLY
    line = said(returns=FLAT * 4, **OLD)
    assert line.startswith(
        "not learning because the return does not rise: -53.4 in the newest episodes, -45.5 in the"
    )
    assert said(**OLD) == TOO_EARLY
    assert said(returns=[], **OLD) == LEARNING  # training from data alone
    rises_slowly = [
        -60.0,
        -31.0,
        *[-75.0, -44.0, -52.0] * 20,
        *[-10.0, -40.0, -20.0, -15.0, -25.0] * 2,
    ]
    assert said(returns=rises_slowly, **OLD) == TOO_EARLY


def test_what_an_expert_drove_is_no_first_return():
    diagnosis = Diagnosis()
    diagnosis.add(episodes([-1.0] * 30, policy_version=0) + episodes(RISES))
    assert diagnosis.judge(WELL) == LEARNING


@pytest.mark.parametrize(
    ("training_steps", "line"), [(0, "not learning because the return does"), (900, LEARNING)]
)
def test_a_training_that_begins_well_need_not_rise(training_steps, line):
    diagnosis = Diagnosis()
    diagnosis.returns.begin(training_steps)
    diagnosis.add(episodes(FLAT * 4))
    assert diagnosis.judge(WELL | OLD).startswith(line)
    diagnosis.add(episodes([-150.0] * 10))
    assert diagnosis.judge(WELL | OLD).startswith("not learning because the return")


def test_a_return_need_not_rise_after_the_second_episode():
    """The drone learns within its second episode now and then."""
    flown = [-67.6, -3.6, *[-2.9, -5.4, -4.1, -6.0, -3.3, -4.7] * 10]
    assert said(returns=flown, **OLD) == LEARNING
    assert said(returns=[*flown, *[-61.0, -75.0] * 10], **OLD).startswith(
        "not learning because the return does not rise: -68 in the newest episodes"
    )
    assert said(returns=[-67.6, -31.0, *FLAT * 4], **OLD).startswith(
        "not learning because the return does not rise"
    )


def test_a_return_that_is_near_its_best_need_not_rise():
    """The pendulum has rewards of -16 to 0 and episodes of 200 steps."""
    pendulum = {"of_episodes": {"steps": 200}, "reward_low": -16.0, **OLD}
    for returns, reward, line in (
        ([-1300.0, -1500.0, -1100.0] * 20, -6.5, "not learning because the return does not rise"),
        ([-240.0, -130.0, -160.0] * 20, -0.9, LEARNING),
        ([-1300.0, -900.0, *[-1200.0, -1500.0] * 20, *[-950.0, -500.0] * 5], -3.6, TOO_EARLY),
    ):
        assert said(returns=returns, reward_recent_mean=reward, **pendulum).startswith(line)


def test_what_is_not_known_is_no_sign():
    bare = {"training_steps_total": 3000, "env_steps_total": 1200, "q_mean": None}
    diagnosis = Diagnosis()
    assert [diagnosis.judge(bare) for _ in range(5)][-1] == TOO_EARLY


def test_a_policy_without_a_choice_is_judged():
    assert said(max_entropy=0.0, entropy_nats=0.0) == TOO_EARLY


def test_a_reward_that_is_the_same_in_each_step_is_one_where_episodes_end():
    same = {"reward_low": -1.0, "reward_high": -1.0}
    assert said(**same).startswith(
        "not learning because the reward has been -1 in each of 1,200 samples"
    )
    assert said(of_episodes={"steps": list(range(20, 32)), "terminated": True}, **same) == TOO_EARLY
    assert said(reward_low=-1000.05, reward_high=-1000.0) == TOO_EARLY  # beside a large offset


@pytest.mark.parametrize(("q_mean", "entropy_nats"), [(30.0, 1.0), (-60.0, -1.0)])
def test_what_entropy_pays_or_costs_is_no_drift_of_values(q_mean, entropy_nats):
    """With a coefficient of 2 and a gamma of 0.95, one nat is worth 40; returns are -26 to 0."""
    assert said(q_mean=q_mean, entropy_nats=entropy_nats, entropy_coef=2.0) == TOO_EARLY
    assert "values drift away" in said(q_mean=q_mean, entropy_nats=entropy_nats, entropy_coef=0.2)


def test_a_sign_that_comes_and_goes_is_none():
    diagnosis = Diagnosis()
    for _ in range(4):
        assert diagnosis.judge(WELL | {"action_spread": 0.0}) == TOO_EARLY
        assert diagnosis.judge(WELL) == TOO_EARLY
