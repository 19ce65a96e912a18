"""Why a training does not learn, in one line, from the figures of its rounds. No clock, no thread, no random numbers.

First the returns: where they have risen clearly, the training learns, whatever else is to be seen. Where they have not,
the first sign that lasts says why; docs/guide/not_learning.md has them all.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tmrl_like.types import EpisodeStats

LEARNING, TOO_EARLY, NOT_LEARNING = "learning", "too early to say", "not learning because "

_LASTS = 3  # judgements in a row
_FIRST, _RECENT, _LEAST_RECENT = 2, 10, 8  # episodes, of training and of tests each
_RISEN, _SPREAD_OF_FIRST = 4.0, 2.0  # standard errors
_MANY, _IN_A_ROW = 20, 30  # episodes; as many in a row are better than both of the first two by chance in 1 of 500
_FLAT_EPISODES, _FLAT_STEPS = 40, 10_000
_TRAINED_STEPS = 500  # before the first sample of a worker
_NEAR_BEST = 0.9  # of the way from the lowest reward to the highest
_LATEST, _LEAST_EPISODES = 20, 10  # episodes that are looked at
_HELD_OUT_RISEN = 3.0  # times the loss on what is trained on

Round = Mapping[str, float]


class Returns:
    """The first returns of a training and the newest, of training and of test episodes.

    All attributes are plain values, which a checkpoint holds.

    Attributes:
        first: by kind, "train" and "test".
        newest: those after the first two, likewise.
        counts: how many there were, likewise.
        above: how many in a row were better than both of the first two, likewise.
        largest_rise: of those that were clear; 0: there was none.
        has_begun: samples of a worker have come.
        starts_well: the first policies had been trained before that, so that returns need not rise.
    """

    def __init__(self) -> None:
        """There are none yet."""
        self.first: dict[str, list[float]] = {"train": [], "test": []}
        self.newest: dict[str, list[float]] = {"train": [], "test": []}
        self.counts, self.above = {"train": 0, "test": 0}, {"train": 0, "test": 0}
        self.largest_rise = 0.0
        self.has_begun = self.starts_well = False

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts.values())

    def begin(self, training_steps: int) -> None:
        """Samples of a worker have come, after so many training steps; only the first call counts."""
        self.starts_well |= not self.has_begun and training_steps >= _TRAINED_STEPS
        self.has_begun = True

    def add(self, stats: EpisodeStats) -> None:
        kind, value = "test" if stats.test else "train", stats.return_
        first = self.first[kind]
        if len(first) >= _FIRST:
            self.newest[kind] = [*self.newest[kind], value][-_MANY:]
            self.above[kind] = self.above[kind] + 1 if value > max(first[:_FIRST]) else 0
        if len(first) < _MANY:
            first.append(value)
        self.counts[kind] += 1

    def have_risen(self) -> bool:
        """Clearly; and since then they have not lost half of that."""
        rise, clear = self._rise()
        if rise > clear or max(self.above.values()) >= _IN_A_ROW:
            self.largest_rise = max(self.largest_rise, rise)
        rise_of_many, clear_of_many = self._rise_of_many()
        return 0.0 < self.largest_rise < 2 * rise or rise_of_many > clear_of_many

    def are_flat(self) -> bool:
        """Whether they have not risen by half of what is clear; or, where they need not rise, have clearly fallen."""
        rise, clear = self._rise()
        if self.starts_well:
            return rise < -clear
        rise_of_many, clear_of_many = self._rise_of_many()
        return rise < clear / 2 and rise_of_many <= clear_of_many / 2

    def _rise(self) -> tuple[float, float]:
        """By how much the newest few are above the first two, and what a clear rise exceeds.

        That is four standard errors by the spread of the newest alone, as if the first were drawn from the same
        distribution, and two by the spread of both.
        """
        rise, same, both = self._compared(_FIRST, _RECENT, _FIRST + _LEAST_RECENT)
        return rise, max(_RISEN * same, _SPREAD_OF_FIRST * both, 1e-9)

    def _rise_of_many(self) -> tuple[float, float]:
        """The same of twenty, once there are twice as many: where episodes succeed or fail, few say little."""
        rise, _, both = self._compared(_MANY, _MANY, 2 * _MANY)
        return rise, _RISEN * both

    def _compared(self, num_first: int, num_newest: int, least: int) -> tuple[float, float, float]:
        """The rise, and its standard error by the newest alone and by both.

        The latter is Welch's ("The generalization of 'Student's' problem", 1947).
        """
        rise = same = both = 0.0
        for kind, count in self.counts.items():
            if count >= least:
                first, newest = self.first[kind][:num_first], self.newest[kind][-num_newest:]
                rise += float(np.mean(newest) - np.mean(first))
                same += float(np.var(newest, ddof=1)) * (1 / len(first) + 1 / len(newest))
                both += float(np.var(first, ddof=1)) / len(first) + float(np.var(newest, ddof=1)) / len(newest)
        return rise, math.sqrt(same), math.sqrt(both)

    def flat(self) -> str:
        """That they do not rise."""
        kind = "train" if self.newest["train"] else "test"
        newest = float(np.mean(self.newest[kind][-_RECENT:]))
        first = float(np.mean(self.first[kind][:_FIRST]))
        said = f"{newest:.3g} in the newest episodes, {first:.3g} in the first ones, after {self.count} episodes"
        if self.starts_well or self.largest_rise:
            return f"the return has fallen: {said}; lower the learning rates, or go on from the best policy"
        return f"the return does not rise: {said}; see that rewards tell better from worse"


class _Values(dict[str, Any]):
    """Figures by name; those that are not there compare as false with everything."""

    def __missing__(self, name: str) -> float:
        return math.nan


SIGNS: dict[str, tuple[Callable[[_Values], Any], str]] = {
    "faults": (
        lambda v: v["fault_share"] > 0.3,
        "the environment fails in {fault_share:.0%} of the newest episodes: the worker's log says why",
    ),
    "safe action": (
        lambda v: v["safe_action_share"] > 0.3,
        "the safe action drives {safe_action_share:.0%} of the steps: the worker's log says why",
    ),
    "still": (
        lambda v: v["observation_moves_share"] < 0.05,
        "the observation stays the same in {observation_still_share:.0%} of the steps: see whether the worker stands "
        "still (commands, emergency stop), or a sensor is dead",
    ),
    "reward": (
        lambda v: v["env_steps_total"] >= 300 and v["reward_same"] and (not v["reward_high"] or not v["terminated"]),
        "the reward has been {reward_high:g} in each of {env_steps_total:,} samples: reward what leads to the goal as "
        "well, or begin with demonstrations",
    ),
    "observation too large": (
        lambda v: v["observation_largest"] > 20,
        "observations are not normalised: one is {observation_largest:.3g} where the first layer expects 1 to 3; "
        "give the observation space true bounds, or infinite ones",
    ),
    "observation too small": (
        lambda v: v["observation_spread"] < 0.02,
        "observations hardly differ: by {observation_spread:.2g} where the first layer expects 1 to 3; "
        "give the observation space true bounds, or infinite ones",
    ),
    "short episodes": (
        lambda v: v["episode_steps"] <= 4,
        "episodes end after {episode_steps:.3g} steps: see what terminates them, and ep_max_length",
    ),
    "cut episodes": (
        lambda v: v["flat"] and v["truncated_share"] == 1 and v["behind_the_cut"] > 0.5,
        "episodes are always cut, after {episode_steps:.3g} steps, behind which lies {behind_the_cut:.0%} of what "
        "counts with gamma {gamma:g}: raise ep_max_length, or lower agent.gamma",
    ),
    "time limit": (
        lambda v: v["terminated_share"] == 1 and v["episode_steps_differ"] == 0,
        "episodes all terminate after exactly {episode_steps:.0f} steps: a time limit must truncate instead",
    ),
    "gamma": (
        lambda v: v["horizon"] < 2,
        "gamma is {gamma:g}, so that only the next {horizon:.2g} steps count: raise agent.gamma (0.9 to 0.99)",
    ),
    "policy stays": (
        lambda v: v["policy_change"] < 1e-5,
        "the policy does not change ({policy_change:.1g} in 500 training steps): raise agent.lr_actor",
    ),
    "old policy": (
        lambda v: v["policy_age_steps"] > 3000,
        "samples are made by a policy that is {policy_age_steps:,.0f} training steps old: lower "
        "trainer.update_model_interval, or see whether workers get policies",
    ),
    "old samples": (
        lambda v: v["sample_age_p50_s"] > 10,
        "samples come {sample_age_p50_s:.0f} s late: see network, clocks and worker.outbox.min_samples",
    ),
    "deadlines": (
        lambda v: v["deadline_miss_share"] > 0.2,
        "time-steps miss their deadline: {deadline_miss_share:.0%} of them; take longer ones, or a smaller actor",
    ),
    "memory": (
        lambda v: v["memory_size"] < 10 * v["batch_size"] and v["env_steps_total"] > 2 * v["memory_size"],
        "the memory holds {memory_transitions:,} transitions, and a batch takes {batch_size:.0f}: raise memory_size",
    ),
    "few training steps": (
        lambda v: v["env_steps_total"] > 400 and v["sample_uses"] < 2,
        "each sample is trained on {sample_uses:.2g} times: raise trainer.max_training_steps_per_env_step, or let the "
        "trainer be faster",
    ),
    "values": (
        lambda v: v["values_drift"] > 0.5,
        "values drift away: the critics say {q_mean:.3g}, and returns lie between {value_low:.3g} and {value_high:.3g} "
        "at most; lower agent.lr_critic, or raise agent.polyak",
    ),
    "critics": (
        lambda v: v["critic_spread"] <= 1e-6 * abs(v["q_mean"]),
        "a critic values all observations and actions alike: its values differ by {critic_spread:.1g}; lower "
        "agent.lr_critic, and start again",
    ),
    "rewards too large": (
        lambda v: v["value_high"] - v["value_low"] > 1e4,
        "rewards are too large: returns go from {value_low:.3g} to {value_high:.3g}; set agent.scale_rewards",
    ),
    "held out": (
        lambda v: v["held_out_rises"] and not v["loss_held_out"] < v["critic_spread"] ** 2,
        "the loss on held-out episodes rises: {loss_held_out:.3g}, and {loss:.3g} on what is trained on; lower "
        "trainer.max_training_steps_per_env_step, or raise memory_size",
    ),
    "entropy collapsed": (
        lambda v: v["entropy_per_action"] < -3.5,
        "entropy has collapsed: {entropy_per_action:.2f} nats for each number of an action; raise agent.target_entropy "
        "or agent.entropy_coef",
    ),
    "random": (
        lambda v: v["training_steps_total"] > 4000 and v["entropy_share"] > 0.95,
        "the policy stays random: its entropy is {entropy_share:.0%} of the largest; lower agent.entropy_coef or "
        "agent.target_entropy, or enlarge the rewards",
    ),
    "ignores": (
        lambda v: v["training_steps_total"] > 2000 and v["action_spread"] < 0.02,
        "the actor ignores its observation: actions differ by {action_spread:.2g} of their range from one to another; "
        "see obs_preprocessor and actor, and lower agent.lr_actor",
    ),
}
"""Of each sign, when it is there, and what is said: the measured figure and the cure. The first that lasts is named."""


class Diagnosis:
    """Judges a training round by round.

    Attributes:
        returns: of all workers' episodes.
        line: what was said last.
    """

    def __init__(self, **known: float) -> None:
        """`known`: figures that do not change; what is not known is left out.

        `batch_size`, `memory_size`, `gamma`, `max_entropy` in nats and `action_numbers`, of a Box.
        """
        self.returns = Returns()
        self._known = known
        self._episodes: deque[EpisodeStats] = deque(maxlen=_LATEST)
        self._terminated = False
        self._rewards = math.inf, -math.inf
        self._held_out: deque[float] = deque(maxlen=_LASTS + 2)  # by how much it is larger
        self._lasts: dict[str, int] = {}
        self.line = TOO_EARLY

    def add(self, episodes: Iterable[EpisodeStats]) -> None:
        """Episodes that were reported."""
        for stats in episodes:
            if stats.policy_version:  # else an expert drove, or what was there before
                self.returns.add(stats)
            self._terminated |= stats.terminated
            if not stats.test:
                self._episodes.append(stats)

    def judge(self, record: Round) -> str:
        """The line about a training whose newest round this is: its metrics, with the figures of `figures`."""
        returns, values = self.returns, self._values(record)
        is_old = record["training_steps_total"] >= _FLAT_STEPS and not 0 < returns.count < _FLAT_EPISODES
        is_near_best = values["reward_level"] > _NEAR_BEST
        values["flat"] = is_old and returns.count > 0 and not is_near_best and returns.are_flat()
        found = {name: text for name, (is_there, text) in SIGNS.items() if is_there(values)}
        self._lasts = {name: self._lasts.get(name, 0) + 1 for name in found}
        lasting = [text for name, text in found.items() if self._lasts[name] >= _LASTS]
        if returns.have_risen():
            self.line = LEARNING
        elif lasting:
            self.line = NOT_LEARNING + lasting[0].format_map(values)
        elif values["flat"]:
            self.line = NOT_LEARNING + returns.flat()
        elif is_old and (returns.starts_well or not returns.count or is_near_best):
            self.line = LEARNING
        else:
            self.line = TOO_EARLY
        return self.line

    def _values(self, record: Round) -> _Values:
        values = _Values({name: value for name, value in {**self._known, **record}.items() if value is not None})
        self._rewards = min(self._rewards[0], values["reward_low"]), max(self._rewards[1], values["reward_high"])
        low, high = self._rewards
        gamma, entropy = values["gamma"], values["entropy_nats"]
        name = next((name for name in values if name.startswith("loss_") and name.endswith("_held_out")), "")
        held_out, loss = values[name], values[name.removesuffix("_held_out")]
        if loss > 0 and held_out == held_out:
            self._held_out.append(held_out / loss)
        bonus = values["entropy_coef"] * entropy / max(1.0 - gamma, 1e-6)
        highest, lowest = max(0.0, values["value_high"]), min(0.0, values["value_low"])
        beyond = max(values["q_mean"] - highest - max(0.0, bonus), lowest + min(0.0, bonus) - values["q_mean"])
        wall_s = max(values["round_duration_s"], 1e-9)
        values.update(
            reward_high=high,
            reward_same=low <= high <= low + 1e-6 * abs(low),
            terminated=self._terminated,
            observation_still_share=1.0 - values["observation_moves_share"],
            horizon=1.0 / (1.0 - gamma) if gamma < 1.0 else math.nan,
            sample_uses=values["training_steps_per_env_step_round"] * values["batch_size"],
            policy_age_steps=values["policy_age_p50_s"]
            * values["training_steps_per_s"]
            * (1 - values["idle_s"] / wall_s),
            values_drift=beyond / (highest - lowest or math.nan),
            loss=loss,
            loss_held_out=held_out,
            held_out_rises=len(self._held_out) > _LASTS and min(self._held_out) > _HELD_OUT_RISEN,
            entropy_per_action=entropy / values["action_numbers"],
            entropy_share=entropy / values["max_entropy"],
        )
        if len(self._episodes) >= _LEAST_EPISODES:
            steps = [stats.steps for stats in self._episodes]
            for name in ("terminated", "truncated", "fault"):
                values[f"{name}_share"] = float(np.mean([bool(getattr(stats, name)) for stats in self._episodes]))
            values.update(episode_steps=float(np.mean(steps)), episode_steps_differ=max(steps) - min(steps))
            values["behind_the_cut"] = gamma ** values["episode_steps"]
            if values["truncated_share"] == 1:
                reward = sum(stats.return_ for stats in self._episodes) / max(1, sum(steps))
                values["reward_level"] = (reward - low) / (high - low or math.nan)
        return values
