"""Off-policy training as a schedule: rounds of training steps, fed by the workers, paced by the environment."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import torch

from tmrl_like.agents.agent import TrainingAgent
from tmrl_like.base.factories import argument_of, completed
from tmrl_like.base.functional import place_of
from tmrl_like.base.text import one_line
from tmrl_like.errors import (
    ConfigError,
    EnvironmentFaultError,
    MemoryContractError,
    MissingExtraError,
    PipelineMismatchError,
    TmrlLikeError,
)
from tmrl_like.metrics.rounds import RoundMetrics
from tmrl_like.policies.actor import ActorModule, refuse_device
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.trainer.diagnosis import Diagnosis
from tmrl_like.trainer.figures import ActorFigures, SampleFigures, known_figures
from tmrl_like.trainer.freshness import FreshnessLimits
from tmrl_like.trainer.options import Schedule
from tmrl_like.trainer.pacing import Pacer
from tmrl_like.trainer.ranks import Alone
from tmrl_like.trainer.rewards import RecentRewards
from tmrl_like.trainer.sample_check import check_data_set
from tmrl_like.trainer.tuning import Tuning, refuse_two_discounts
from tmrl_like.types import Batch, Delivery, EpisodeStats, Receipt

log = logging.getLogger("tmrl_like.trainer")

_FIRST_REMINDER_S = 10.0
_LONGEST_REMINDER_S = 600.0
_FIGURES_EVERY = 500  # training steps and samples
_WARM_UP_EVERY_S = 5.0
_OTHERS_WAIT_S = 0.02  # of several ranks, for the one that has nothing new


class TrainerInterface(Protocol):
    """What training sees of the network."""

    def retrieve(self, timeout_s: float = 0.0) -> Sequence[Delivery]:
        """Take what has arrived; waits up to `timeout_s` for something to arrive."""

    def confirm(self, deliveries: Sequence[Delivery]) -> None:
        """Their samples are in the memory now."""

    def reject(self, receipt: Receipt, reason: str) -> None:
        """Take nothing more of the worker process of this packet: its samples do not fit those in the memory."""

    def note_trained(self, receipt: Receipt) -> None:
        """In lockstep: the training steps are made that the worker process awaits up to this packet."""

    def broadcast_model(self, model: ActorModule) -> int:
        """Publish weights to all workers, without waiting; returns their version."""

    def published_at(self, version: int) -> float | None:
        """Unix time at which a version was published, by `base.clocks.unix_s`; None where unknown."""

    @property
    def newest_version(self) -> int:
        """The version published last; 0: none."""

    def fleet(self) -> dict[str, float]:
        """Metrics of the workers' condition, and of what they did since the last call."""

    def who_is_missing(self) -> str:
        """Why no samples come, for people: which workers are here, which not, and why. NoWorkerError: it is in vain."""


class _RankRound(msgspec.Struct):
    """What a rank adds to the metrics of a round."""

    episodes: list[EpisodeStats]
    samples: int
    memory_transitions: int
    fleet: dict[str, float]


_encode = msgspec.msgpack.encode


class StopTraining(Exception):  # noqa: N818 - not an error
    """Leave the schedule where it stands, keep what was learnt."""


@dataclass(eq=False, init=False)
class TrainingOffline(Schedule):
    """Trains an off-policy agent from what the workers send.

    Its constructor takes all fields of `Schedule`, too: those that it does not name, by keyword.

    Attributes:
        env_cls: makes an environment, only to read its spaces; or the pair (observation_space, action_space).
        memory_cls: makes the memory from `nb_steps` and `device`.
        training_agent_cls: makes the agent from `observation_space`, `action_space` and `device`.
        agent_scheduler: called as f(agent, epoch) at the start of each epoch.
        diagnosis: says whether it learns and, if not, why.
        recent_rewards: mean reward of the newest `reward_window` decisions; any thread reads it.
        tuning: what changes while training goes on.
        observer: takes the records of rounds and of episodes as they end; docs/metrics.md says what is in them.
        should_stop: asked between training steps.
        ranks: the trainers that learn as one; what is counted is counted over all.
    """

    env_cls: Any = None
    memory_cls: Callable[..., MemoryDataloading] | None = None
    training_agent_cls: Callable[..., TrainingAgent] | None = None
    agent_scheduler: Callable[[TrainingAgent, int], None] | None = None

    epoch: int = field(default=0, init=False)
    round: int = field(default=0, init=False)
    round_steps: int = field(default=0, init=False)
    total_updates: int = field(default=0, init=False)
    total_samples: int = field(default=0, init=False)

    def __init__(
        self,
        env_cls: Any = None,
        memory_cls: Callable[..., MemoryDataloading] | None = None,
        training_agent_cls: Callable[..., TrainingAgent] | None = None,
        epochs: float = Schedule.epochs,
        rounds: int = Schedule.rounds,
        steps: int = Schedule.steps,
        update_model_interval: int = Schedule.update_model_interval,
        update_buffer_interval: int = Schedule.update_buffer_interval,
        max_training_steps_per_env_step: float = Schedule.max_training_steps_per_env_step,
        sleep_between_buffer_retrieval_attempts: float = Schedule.sleep_between_buffer_retrieval_attempts,
        profiling: bool = False,
        agent_scheduler: Callable[[TrainingAgent, int], None] | None = None,
        start_training: int = Schedule.start_training,
        device: str | None = None,
        **schedule: Any,
    ) -> None:
        """Take the fields, each as the class says, and make memory and agent (`__post_init__`)."""
        self.env_cls = env_cls
        self.memory_cls = memory_cls
        self.training_agent_cls = training_agent_cls
        self.agent_scheduler = agent_scheduler
        super().__init__(
            epochs=epochs,
            rounds=rounds,
            steps=steps,
            update_model_interval=update_model_interval,
            update_buffer_interval=update_buffer_interval,
            max_training_steps_per_env_step=max_training_steps_per_env_step,
            sleep_between_buffer_retrieval_attempts=sleep_between_buffer_retrieval_attempts,
            profiling=profiling,
            start_training=start_training,
            device=device,
            **schedule,
        )

    def __post_init__(self) -> None:
        """Make memory and agent.

        Raises:
            ConfigError: a factory is missing, or a number is out of range.
            MissingExtraError: there is no profiler.
        """
        super().__post_init__()
        for name in ("env_cls", "memory_cls", "training_agent_cls"):
            if getattr(self, name) is None:
                raise ConfigError(f"TrainingOffline needs {name}")
        assert self.memory_cls is not None
        assert self.training_agent_cls is not None
        if self.profiling and importlib.util.find_spec("pyinstrument") is None:
            raise MissingExtraError("profiling=True needs pyinstrument: pip install pyinstrument")
        if self.device:
            refuse_device(self.device)
        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.freshness = FreshnessLimits(self.max_sample_age_s, self.max_policy_lag_versions)
        self.observation_space, self.action_space = _spaces_of(self.env_cls)
        gamma = argument_of(self.training_agent_cls, "gamma")
        memory_cls = completed(self.memory_cls, gamma=gamma, held_out=self.held_out_share)
        self.memory = memory_cls(nb_steps=self.steps, device=self.device)
        self.agent = self.training_agent_cls(
            observation_space=self.observation_space, action_space=self.action_space, device=self.device
        )
        refuse_two_discounts(getattr(self.memory, "gamma", None), getattr(self.agent, "gamma", None))
        if self.memory.mini_races is not None and not self.agent.takes_time_left:
            raise ConfigError(
                f"the memory draws mini-races, but {type(self.agent).__name__} does not take the time that is left: "
                "leave mini_races out, or take an agent that does (IQNAgent)"
            )
        check_data_set(self.memory, self.observation_space)
        self.total_samples = len(self.memory)
        self.pacer = Pacer(self, self.total_samples)
        self.should_stop: Callable[[], bool] = lambda: False
        self.ranks = Alone()
        self._unsaid_samples = self._unsaid_tasks = 0  # that the other ranks have not heard of
        self._own_samples = 0  # that came to this rank
        self.observer: Callable[[dict[str, Any]], None] = lambda record: None
        self.recent_rewards = RecentRewards(self.reward_window)
        self._sample_figures, self._actor_figures = SampleFigures(), ActorFigures()
        self._batch: Batch | None = None  # trained on last
        self._figures_at: float = 0  # training steps and samples
        self.diagnosis = Diagnosis(**known_figures(self.agent, self.memory))
        self._began_at = self._published_at = self.clock()
        self._awaited: deque[tuple[int, Receipt]] = deque()  # in lockstep: tasked steps, up to this packet
        self.tuning = Tuning(self, self.training_agent_cls, self.memory_cls)
        self.tuning.follow()

    def tune(self, values: Mapping[str, float | None]) -> Future[None]:
        """Change hyper-parameters while training goes on; any thread may call this.

        They change with the next round, all or none of them, and are kept by checkpoints. With several ranks, rank 0's
        calls count.

        Args:
            values: by their names in an experiment, e.g. {"agent.lr_actor": 1e-4, "trainer.steps": 100}: what agent and
                memory have in `tunable`, and the fields `LIVE` of the schedule.

        Returns:
            What is done when they have changed, or raises ConfigError where one of them cannot be.

        Raises:
            ConfigError: one of them cannot change, or is no such number.
        """
        return self.tuning.ask(values)

    def run_epoch(self, interface: TrainerInterface) -> list[dict[str, Any]]:
        """Train for `rounds` x `steps` training steps, or for what an epoch that was stopped has left of them.

        Returns:
            The metrics of all rounds.
        """
        records: list[dict[str, Any]] = []
        metrics: RoundMetrics | None = None
        if self.agent_scheduler is not None:
            self.agent_scheduler(self.agent, self.epoch)
        while self.round < self.rounds:
            metrics = metrics or RoundMetrics(self.epoch, self.round)
            self.tuning.begin_round()
            with _profiled(self.profiling), contextlib.suppress(StopTraining):
                self._run_round(interface, metrics)
                self.round += 1
            is_over, is_due = self.ranks.sum(
                self._is_to_end(), self.ranks.rank == 0 and metrics.duration_s >= self.metrics_interval_s
            )
            if is_over or is_due or self.round >= self.rounds:
                records.append(self._close_round(interface, metrics))
                self.observer({"kind": "round", "time_s": self.elapsed_s, **records[-1]})
                metrics = None
            if is_over:
                break
        if self.round >= self.rounds:
            self.epoch, self.round = self.epoch + 1, 0
        return records

    def _run_round(self, interface: TrainerInterface, metrics: RoundMetrics) -> None:
        self._wait_for_samples(interface, metrics)
        for batch in itertools.islice(self.memory, max(0, self.steps - self.round_steps)):
            metrics.add_step(self.agent.train(batch))
            self._batch = batch
            self.total_updates += 1
            self.round_steps += 1
            self.ranks.check(self.agent, self.total_updates)
            if self.total_updates % self.update_model_interval == 0 and self._may_publish():
                self._published_at = self.clock()
                interface.broadcast_model(self.agent.get_actor())
            self._note_trained(interface)
            if self.pacer.in_lockstep or self.total_updates % self.update_buffer_interval == 0:
                self._update_buffer(interface, metrics)
            if self.round_steps < self.steps:
                self._wait_for_samples(interface, metrics)
        self.round_steps = 0

    def _may_publish(self) -> bool:
        is_due = self.clock() - self._published_at >= self.update_model_interval_s
        return not self.update_model_interval_s or self.ranks.sum(self.ranks.rank == 0 and is_due) == [1]

    def _wait_for_samples(self, interface: TrainerInterface, metrics: RoundMetrics) -> None:
        """Pause while training would run ahead of the environment, or the memory holds too little."""
        if self._decide():
            return
        silent_since, remind_after_s, samples = self.clock(), _FIRST_REMINDER_S, self._awaited_samples()
        counted_at = -math.inf
        with metrics.idle():
            longest_s = _OTHERS_WAIT_S if self.ranks.size > 1 else math.inf
            while not self._decide():
                self._update_buffer(interface, metrics, min(self.sleep_between_buffer_retrieval_attempts, longest_s))
                silent_s = self.clock() - silent_since
                if self._awaited_samples() != samples:
                    silent_since, remind_after_s, samples = self.clock(), _FIRST_REMINDER_S, self._awaited_samples()
                elif silent_s >= remind_after_s and (self.ranks.rank == 0 or not self.memory.ready):
                    log.warning("no samples for %.0f s: %s", silent_s, interface.who_is_missing())
                    remind_after_s = silent_s + min(silent_s + _FIRST_REMINDER_S, _LONGEST_REMINDER_S)
                if self.total_samples < self.start_training and self.clock() - counted_at >= _WARM_UP_EVERY_S:
                    counted_at = self.clock()
                    waits = {"env_steps_total": self.total_samples, "start_training": self.start_training}
                    self.observer({"kind": "warm_up", "time_s": self.elapsed_s, **waits})

    def _awaited_samples(self) -> int:
        """Samples so far: of all ranks, or of this one alone while it has too few to draw from."""
        return self.total_samples if self.memory.ready else self._own_samples

    def _decide(self) -> bool:
        """Whether to train now: all ranks do, or none does. StopTraining: one of them is to end."""
        while True:
            pacer = self.pacer
            ready = pacer.may_train(self.total_updates, self.total_samples) and self.memory.ready
            num_ready, num_stop, new, tasked, in_lockstep = self.ranks.sum(
                ready, self._is_to_end(), self._unsaid_samples, self._unsaid_tasks, pacer.in_lockstep
            )
            if others := new - self._unsaid_samples:
                self.diagnosis.returns.begin(self.total_updates)
                pacer.before_samples(self.total_updates, self.total_samples)
                self.total_samples += others
            if in_lockstep:
                pacer.enter_lockstep(self.total_updates)
            pacer.tasked_steps += tasked - self._unsaid_tasks
            self._unsaid_samples = self._unsaid_tasks = 0
            if num_stop:
                raise StopTraining
            if num_ready == self.ranks.size or not new or self.ranks.size == 1:
                return num_ready == self.ranks.size

    def _update_buffer(self, interface: TrainerInterface, metrics: RoundMetrics, timeout_s: float = 0.0) -> None:
        taken, rejected = [], set()
        for delivery in interface.retrieve(timeout_s):
            process = None if delivery.receipt is None else delivery.receipt[:2]
            if process in rejected:
                continue
            try:
                self._take(delivery, interface, metrics)
            except MemoryContractError as error:
                is_a_misfit = self.memory.holds_samples and not isinstance(error, PipelineMismatchError)
                if delivery.receipt is None or not is_a_misfit:  # the first may rather not fit the memory's arguments
                    raise
                interface.reject(delivery.receipt, str(error))
                rejected.add(process)
            else:
                taken.append(delivery)
        if taken:
            interface.confirm(taken)
            self._note_trained(interface)

    def _note_trained(self, interface: TrainerInterface) -> None:
        """In lockstep, let workers go on whose tasks are done."""
        awaited = self._awaited
        while awaited and self.pacer.is_done(self.total_updates, awaited[0][0]):
            interface.note_trained(awaited.popleft()[1])

    def _take(self, delivery: Delivery, interface: TrainerInterface, metrics: RoundMetrics) -> None:
        buffer = delivery.buffer
        if delivery.awaits:
            self.pacer.enter_lockstep(self.total_updates)
        if len(buffer):
            self.memory.append(buffer)
            self._own_samples += len(buffer)
            self._count(delivery, interface, metrics)
            self.recent_rewards.add(buffer)
        if delivery.awaits and delivery.receipt is not None:
            self._awaited.append((self.pacer.tasked_steps, delivery.receipt))
        self._note_episodes(delivery.episodes, metrics)

    def _count(self, delivery: Delivery, interface: TrainerInterface, metrics: RoundMetrics) -> None:
        buffer = delivery.buffer
        self.diagnosis.returns.begin(self.total_updates)
        self.pacer.before_samples(self.total_updates, self.total_samples)
        metrics.add_samples(buffer, interface.published_at, interface.newest_version, delivery.ahead_s)
        self._sample_figures.add(buffer)
        self.total_samples += len(buffer)
        self._unsaid_samples += len(buffer)
        if self.pacer.in_lockstep and self.total_samples > self.start_training and self.memory.ready:
            tasked = sum(int((~block.is_reset).sum()) for block in buffer.blocks)
            self.pacer.tasked_steps += tasked
            self._unsaid_tasks += tasked

    def _note_episodes(self, episodes: Sequence[EpisodeStats], metrics: RoundMetrics) -> None:
        metrics.episodes += episodes
        for stats in episodes:
            record = {"kind": "episode", "time_s": self.elapsed_s, **msgspec.to_builtins(stats)}
            self.observer({**record, "env_steps_total": self.total_samples})

    def _close_round(self, interface: TrainerInterface, metrics: RoundMetrics) -> dict[str, Any]:
        fleet, memory_transitions = interface.fleet(), len(self.memory)
        if self.ranks.size > 1:
            mine = _RankRound(metrics.episodes, metrics.samples, memory_transitions, fleet)
            said = [msgspec.msgpack.decode(data, type=_RankRound) for data in self.ranks.gather(_encode(mine))]
            for other in said[: self.ranks.rank] + said[self.ranks.rank + 1 :]:
                self._note_episodes(other.episodes, metrics)
                metrics.samples += other.samples
                memory_transitions += other.memory_transitions
                fleet |= {name: fleet.get(name, 0) + value for name, value in other.fleet.items()}
        further = self.recent_rewards.metrics() | fleet
        record = metrics.close(
            total_updates=self.total_updates,
            total_samples=self.total_samples,
            memory_transitions=memory_transitions,
            further=further | self._losses_held_out() | self.tuning.metrics(),
        )
        return self._diagnosed(record, metrics.episodes)

    def _diagnosed(self, record: dict[str, Any], episodes: Sequence[EpisodeStats]) -> dict[str, Any]:
        """The record with what the diagnosis says and, of some rounds, the figures that it goes by."""
        self.diagnosis.add(episodes)
        done = self.total_updates + self.total_samples
        if self._batch is not None and done - self._figures_at >= _FIGURES_EVERY:
            self._figures_at = done
            try:
                figures = self._sample_figures.figures() | self._actor_figures.figures(self.agent, self._batch)
            except Exception as error:  # the user's agent among others
                self._figures_at = math.inf
                log.warning("no figures of samples and actor: %s: %s; training goes on", type(error).__name__, error)
                figures = {}
            record |= self.recent_rewards.widen(figures)
            self.diagnosis.judge(record)
        return record | {"learning": self.diagnosis.line}

    def _losses_held_out(self) -> dict[str, float]:
        """The agent's losses on a batch of held-out episodes; training draws what it would draw without."""
        batch = self.memory.sample_held_out() if self.ranks.rank == 0 else None
        if batch is None:
            return {}
        with torch.random.fork_rng([self.device] if str(self.device).startswith("cuda") else []):
            return {f"{name}_held_out": float(loss) for name, loss in self.agent.evaluate(batch).items()}

    def is_over(self) -> bool:
        """Whether on any rank time is up or somebody asked to stop; the epochs are counted by the caller."""
        return self.ranks.sum(self._is_to_end()) != [0]

    def _is_to_end(self) -> bool:
        return self.should_stop() or self.elapsed_s > self.max_minutes * 60

    def clock(self) -> float:
        """Seconds since whenever."""
        return time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since construction, and those of the sessions that this one resumes."""
        return self.clock() - self._began_at

    @elapsed_s.setter
    def elapsed_s(self, seconds: float) -> None:
        self._began_at = self.clock() - seconds


def _spaces_of(env_cls: Any) -> tuple[Any, Any]:
    if isinstance(env_cls, tuple | list):
        if len(env_cls) != 2:
            raise ConfigError(f"env_cls as a tuple is (observation_space, action_space); it has {len(env_cls)} items")
        return env_cls[0], env_cls[1]
    try:
        env = env_cls()
    except TmrlLikeError:
        raise
    except Exception as error:
        raise EnvironmentFaultError(
            f"the environment raised while it was made, to read its spaces: {one_line(error)}{place_of(error)}"
        ) from error
    try:
        return env.observation_space, env.action_space
    finally:
        env.close()


@contextlib.contextmanager
def _profiled(on: bool) -> Iterator[None]:
    if not on:
        yield
        return
    from pyinstrument import Profiler

    with Profiler() as profiler:
        yield
    log.info("%s", profiler.output_text(unicode=True))
