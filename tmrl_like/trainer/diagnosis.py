"""Says in one line why a training does not learn, from the figures of its rounds. Uses no clock,
thread or random numbers.

Returns come first: if they have clearly risen, the training learns, whatever else the figures show.
If not, the first sign that persists gives the reason; docs/learning.md lists all signs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from tmrl_like.types import EpisodeStats

LEARNING = "learning"
TOO_EARLY = "too early to say"
NOT_LEARNING = "not learning because "

_LASTS = 3  # judgements in a row in which a sign must be present
_FEW = 2  # numbers of first episodes that are compared with the newest
_MANY = 20
_LEAST = 8  # least and most newest episodes, when compared with the few
_NEWEST = 10
_CLEAR = 3.0  # standard errors that make a rise clear
_FAR = 6.0  # standard deviations of the newest returns that a first one lies below them
_FLAT_EPISODES = 40
_FLAT_STEPS = 10_000
# training steps before a worker's first sample that make a policy count as trained
_TRAINED_STEPS = 500
_NEAR_BEST = 0.9  # share of the way from the lowest reward to the highest
# newest episodes that are looked at, and the least number of them
_LATEST = 20
_LEAST_EPISODES = 10

Round = Mapping[str, float]


class Returns:
    """The first and the newest returns of a training, of training and of test episodes.

    All attributes are plain values, which a checkpoint holds.

    Attributes:
        kept: by kind, "train" and "test": the first twenty, and the newest twenty of the others.
        count: number of all returns so far.
        largest_rises: the largest clear rises, by comparison.
        has_begun: whether samples of a worker have come.
        starts_well: the first policies were already trained, so that returns need not rise.
    """

    def __init__(self) -> None:
        """Start without any returns."""
        self.kept: dict[str, list[float]] = {"train": [], "test": []}
        self.count = 0
        self.largest_rises: dict[str, float] = {}
        self.has_begun = self.starts_well = False

    def begin(self, training_steps: int) -> None:
        """Note that samples of a worker have come, after this many training steps; only the first
        call has an effect.
        """
        self.starts_well |= not self.has_begun and training_steps >= _TRAINED_STEPS
        self.has_begun = True

    def begin_trained(self) -> None:
        """Note that the first policies are already trained."""
        self.starts_well = True

    def add(self, stats: EpisodeStats) -> None:
        kept = self.kept["test" if stats.test else "train"]
        del kept[_MANY : len(kept) + 1 - _MANY]
        kept.append(stats.return_)
        self.count += 1

    def _rises(self) -> Iterator[tuple[str, float, float]]:
        """Yield for each comparison its name, by how much the newest returns exceed the first, and
        what a clear rise exceeds.

        Of the first returns the better half counts. A rise is clear if it exceeds three standard
        errors, computed from the spread of the newest as if all were drawn from the same
        distribution.
        """
        for kind, kept in self.kept.items():
            for first, newest in (
                (kept[:_FEW], kept[_FEW:][-_NEWEST:]),
                (kept[:_MANY], kept[_MANY:]),
            ):
                if len(newest) >= max(_LEAST, len(first)):
                    error = float(np.std(newest, ddof=1)) * math.sqrt(
                        1 / len(first) + 1 / len(newest)
                    )
                    rise = float(np.mean(newest) - np.reshape(first, (2, -1)).mean(1).max())
                    yield f"{kind} {len(first)}", rise, max(_CLEAR * error, 1e-9)

    def need_not_rise(self) -> bool:
        """Whether the first policies were already trained, or learning took less than two episodes:
        one of the first two returns lies far below the newest.
        """
        return self.starts_well or any(
            min(kept[:_FEW]) < np.mean(newest) - _FAR * np.std(newest, ddof=1)
            for kept in self.kept.values()
            if len(newest := kept[_FEW:][-_NEWEST:]) >= _LEAST
        )

    def have_risen(self) -> bool:
        """Whether returns of either kind have clearly risen, and have since kept more than half of
        their largest rise.
        """
        largest = self.largest_rises
        have_risen = False
        for name, rise, clear in self._rises():
            if rise > max(clear, largest.get(name, 0.0)):
                largest[name] = rise
            have_risen |= rise > largest.get(name, math.inf) / 2
        return have_risen

    def are_flat(self, was_said: bool) -> bool:
        """Whether returns have risen by less than a quarter of a clear rise, or half of one if they
        `was_said` to be flat before; if they need not rise, whether they have clearly fallen.
        """
        if self.need_not_rise():
            return any(rise < -clear for _, rise, clear in self._rises())
        return all(rise < clear / (2 if was_said else 4) for _, rise, clear in self._rises())

    def flat(self) -> str:
        """Return the sentence that says that returns do not rise."""
        kept = self.kept["train"] or self.kept["test"]
        newest = float(np.mean(kept[-_NEWEST:]))
        first = float(np.mean(kept[:_FEW]))
        said = (
            f"{newest:.3g} in the newest episodes, {first:.3g} in the first ones, after "
            f"{self.count} episodes"
        )
        if self.need_not_rise() or self.largest_rises:
            return (
                f"the return has fallen: {said}; lower the learning rates, or go on from the best "
                "policy"
            )
        return f"the return does not rise: {said}; check that better behaviour earns more reward"


class _Values(dict[str, float]):
    """Figures by name. A missing figure is NaN, so that every comparison with it is false."""

    def __missing__(self, name: str) -> float:
        return math.nan

    def __getattr__(self, name: str) -> float:
        return self[name]


SIGNS: dict[str, tuple[Callable[[_Values], bool], str]] = {
    "still": (
        lambda v: v.observation_moves_share < 0.05,
        "the observation stays the same in {observation_still_share:.0%} of the steps: check "
        "whether the worker stands still (commands, emergency stop), or a sensor is dead",
    ),
    "reward": (
        lambda v: (
            v.env_steps_total >= 300
            and v.reward_same == 1
            and (not v.reward_high or not v.terminated)
        ),
        "the reward has been {reward_high:g} in each of {env_steps_total:,} samples: reward what "
        "leads to the goal as well, or begin with demonstrations",
    ),
    "reward too small": (
        lambda v: v.entropy_bonus > 10 * v.reward_range > 0,
        "rewards are negligible beside the entropy bonus: that is {entropy_bonus:.2g} in each "
        "step, and rewards differ by {reward_range:.2g}; enlarge the rewards, or lower "
        "agent.entropy_coef",
    ),
    "reward too large": (
        lambda v: max(abs(v.value_low), abs(v.value_high)) > 10_000,
        "rewards are too large: with equal rewards, returns would reach {value_low:.3g} to "
        "{value_high:.3g}, and critics learn values of about a hundred well; divide the rewards, "
        "or set agent.scale_rewards",
    ),
    "observation too large": (
        lambda v: v.observation_largest > 20,
        "observations are not normalised: one is {observation_largest:.3g} where the first layer "
        "expects 1 to 3; give the observation space true bounds, or infinite ones",
    ),
    "observation too small": (
        lambda v: v.observation_spread < 0.02,
        "observations hardly differ: by {observation_spread:.2g} where the first layer expects 1 "
        "to 3; give the observation space true bounds, or infinite ones",
    ),
    "short episodes": (
        lambda v: v.episode_steps <= 4,
        "episodes end after {episode_steps:.3g} steps: see what terminates them, and ep_max_length",
    ),
    "time limit": (
        lambda v: v.terminated_share == 1 and v.episode_steps_differ == 0,
        "episodes all terminate after exactly {episode_steps:.0f} steps: a time limit must "
        "truncate instead",
    ),
    "gamma": (
        lambda v: v.gamma < 0.5,
        "gamma is {gamma:g}, so that fewer than two future steps count: raise agent.gamma (0.9 to "
        "0.99)",
    ),
    "policy stays": (
        lambda v: v.policy_change < 1e-5,
        "the policy does not change ({policy_change:.1g} in 500 training steps): raise "
        "agent.lr_actor",
    ),
    "old policy": (
        lambda v: v.policy_age_steps > 3000,
        "samples are made by a policy that is {policy_age_steps:,.0f} training steps old: lower "
        "trainer.update_model_interval, or see whether workers get policies",
    ),
    "memory": (
        lambda v: v.memory_size < 10 * v.batch_size and v.env_steps_total > 2 * v.memory_size,
        "the memory holds {memory_transitions:,} transitions, and a batch takes {batch_size:.0f}: "
        "raise memory_size",
    ),
    "few training steps": (
        lambda v: v.env_steps_total > 400 and v.sample_uses < 2,
        "each sample is trained on {sample_uses:.2g} times: raise "
        "trainer.max_training_steps_per_env_step, or make the trainer faster",
    ),
    "values": (
        lambda v: v.values_drift > 0.5,
        "values drift away: the critics' mean is {q_mean:.3g}, but returns lie between "
        "{value_low:.3g} and {value_high:.3g} at most; lower agent.lr_critic, or raise "
        "agent.polyak",
    ),
    "critics": (
        lambda v: v.critic_spread <= 1e-6 * abs(v.q_mean),
        "a critic values all observations and actions alike: its values differ by "
        "{critic_spread:.1g}; lower agent.lr_critic, and start again",
    ),
    "critics stay": (
        lambda v: v.critic_change < 1e-5,
        "critics do not change ({critic_change:.1g} in 500 training steps): raise agent.lr_critic",
    ),
    "random": (
        lambda v: v.training_steps_total > 4000 and v.entropy_share > 0.95,
        "the policy stays random: its entropy is {entropy_share:.0%} of the largest; lower "
        "agent.entropy_coef or agent.target_entropy, or enlarge the rewards",
    ),
    "ignores": (
        lambda v: v.training_steps_total > 2000 and v.action_spread < 0.02,
        "the actor ignores its observation: its actions differ by {action_spread:.2g} of their "
        "range; check obs_preprocessor and actor, and lower agent.lr_actor",
    ),
}
"""For each sign, its condition and its sentence, with the measured figure and the cure. The first
sign that persists is reported.
"""


class Diagnosis:
    """Judges a training round by round.

    Attributes:
        returns: of the episodes of all workers.
        line: the newest judgement.
    """

    def __init__(self) -> None:
        """Start without episodes and rounds."""
        self.returns = Returns()
        self._episodes: deque[EpisodeStats] = deque(maxlen=_LATEST)
        self._terminated = False
        self._rewards = math.inf, -math.inf
        self._lasts: dict[str, int] = {}
        self._says_flat = False
        self.line = TOO_EARLY

    def add(self, episodes: Iterable[EpisodeStats]) -> None:
        """Take episodes that workers have reported."""
        for stats in episodes:
            # otherwise an expert drove, or the episode was cut short
            if stats.policy_version and not stats.fault:
                self.returns.add(stats)
            self._terminated |= stats.terminated
            if not stats.test:
                self._episodes.append(stats)

    def judge(self, record: Round) -> str:
        """Return the line about a training after its newest round, given as its metrics with the
        figures of the module `learning`. Figures that are missing are no sign.
        """
        returns = self.returns
        values = self._values(record)
        found = {name: text for name, (is_there, text) in SIGNS.items() if is_there(values)}
        self._lasts = {name: self._lasts.get(name, 0) + 1 for name in found}
        lasting = [text for name, text in found.items() if self._lasts[name] >= _LASTS]
        is_old = (
            record["training_steps_total"] >= _FLAT_STEPS and not 0 < returns.count < _FLAT_EPISODES
        )
        is_near_best = values.reward_level > _NEAR_BEST
        was_said = self._says_flat
        self._says_flat = False
        if returns.have_risen():
            self.line = LEARNING
        elif lasting:
            self.line = NOT_LEARNING + lasting[0].format_map(values)
        elif is_old and returns.count and not is_near_best and returns.are_flat(was_said):
            self._says_flat = True
            self.line = NOT_LEARNING + returns.flat()
        elif is_old and (returns.need_not_rise() or not returns.count or is_near_best):
            self.line = LEARNING
        else:
            self.line = TOO_EARLY
        return self.line

    def _values(self, record: Round) -> _Values:
        values = _Values({name: value for name, value in record.items() if value is not None})
        self._rewards = (
            min(self._rewards[0], values.reward_low),
            max(self._rewards[1], values.reward_high),
        )
        low, high = self._rewards
        gamma = values.gamma
        entropy = values.entropy_nats
        step_bonus = values.entropy_coef * entropy
        bonus = step_bonus / max(1.0 - gamma, 1e-6)
        highest = max(0.0, values.value_high)
        lowest = min(0.0, values.value_low)
        beyond = max(
            values.q_mean - highest - max(0.0, bonus),
            lowest + min(0.0, bonus) - values.q_mean,
        )
        training_share = 1.0 - values.idle_s / max(values.round_duration_s, 1e-9)
        values.update(
            reward_high=high,
            reward_range=high - low,
            entropy_bonus=abs(step_bonus),
            reward_same=low <= high <= low + 1e-6 * abs(low),
            terminated=self._terminated,
            observation_still_share=1.0 - values.observation_moves_share,
            sample_uses=values.training_steps_per_env_step_round * values.batch_size,
            policy_age_steps=values.policy_age_p50_s * values.training_steps_per_s * training_share,
            values_drift=beyond / (highest - lowest or math.nan),
            entropy_share=entropy / (values.max_entropy or math.nan),
        )
        if len(self._episodes) >= _LEAST_EPISODES:
            steps = [stats.steps for stats in self._episodes]
            values.update(
                terminated_share=float(np.mean([stats.terminated for stats in self._episodes])),
                episode_steps=float(np.mean(steps)),
                episode_steps_differ=max(steps) - min(steps),
            )
            if all(stats.truncated for stats in self._episodes):
                values["reward_level"] = (values.reward_recent_mean - low) / (
                    high - low or math.nan
                )
        return values
