"""Off-policy training as a schedule: rounds of training steps, fed by the workers and paced by the
environment.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import gymnasium
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
    unexpected,
)
from tmrl_like.metrics.reading import Record
from tmrl_like.policies.actor import ActorModule, refuse_device
from tmrl_like.policies.weight_file import Weights
from tmrl_like.replay.contract import MemoryDataloading, MemoryFactory
from tmrl_like.trainer.checkpoint_file import Kept
from tmrl_like.trainer.diagnosis import Diagnosis
from tmrl_like.trainer.fleet import together
from tmrl_like.trainer.interface import TrainerInterface
from tmrl_like.trainer.learning import LearningWatch
from tmrl_like.trainer.options import LIVE, Schedule
from tmrl_like.trainer.pacing import Pacer
from tmrl_like.trainer.ranks import Alone, Ranks, Vote
from tmrl_like.trainer.round_metrics import RoundMetrics
from tmrl_like.trainer.tuning import TunablePart, Tuning, refuse_two_discounts
from tmrl_like.trainer.watch import Listener, RecentRewards
from tmrl_like.types import Action, Batch, Buffer, Delivery, EpisodeStats, Observation
from tmrl_like.wire.spaces import Space

log = logging.getLogger("tmrl_like.trainer")

_FactoryT = TypeVar("_FactoryT")
_FIRST_REMINDER_S = 10.0
_LONGEST_REMINDER_S = 600.0
_WARM_UP_EVERY_S = 5.0
_COUNTERS = ("epoch", "round", "round_steps", "elapsed_s", "total_updates", "total_samples")
# longest wait of one of several ranks that has nothing new, for the others' sake
_OTHERS_WAIT_S = 0.02
_OF_AN_EPOCH = ("_interface", "_told", "_should_stop")  # what `run_epoch` is given
_BY_POSITION = (  # after the first three, in the order of the original interface
    "epochs",
    "rounds",
    "steps",
    "update_model_interval",
    "update_buffer_interval",
    "max_training_steps_per_env_step",
    "sleep_between_buffer_retrieval_attempts",
    "profiling",
    "agent_scheduler",
    "start_training",
    "device",
)

SpacesOf = Callable[[], gymnasium.Env[Observation, Action]] | Sequence[Space]
AgentFactory = Callable[..., TrainingAgent]
AgentScheduler = Callable[[TrainingAgent, int], None]
StopAsked = Callable[[], bool]


class _StopTraining(Exception):  # noqa: N818 - not an error
    """Raised to leave the schedule at once; everything learnt so far is kept."""


def _never() -> bool:
    return False


class TrainingOffline(Schedule):
    """Trains an off-policy agent from what the workers send.

    Positional arguments are those that the constructor names first, then `epochs`, `rounds`,
    `steps`, `update_model_interval`, `update_buffer_interval`, `max_training_steps_per_env_step`,
    `sleep_between_buffer_retrieval_attempts`, `profiling`, `agent_scheduler`, `start_training` and
    `device`. These may also be given by name, like all other fields of `Schedule`.

    Attributes:
        env_cls: makes an environment, only to read its spaces; or the pair (observation_space,
            action_space).
        memory_cls: makes the memory from `nb_steps` and `device`, and from those of `gamma` (the
            agent's), `held_out`, `observation_space` and `action_space` that it takes.
        training_agent_cls: makes the agent from `observation_space`, `action_space` and `device`.
        agent_scheduler: called as f(agent, epoch) at the start of each epoch.
        diagnosis: judges whether the agent learns and, if not, why.
        recent_rewards: mean reward of the newest `reward_window` decisions; any thread may read it.
        tuning: applies changes of hyper-parameters during training.
        pacer: limits how far training may run ahead of the environment.
        kept: what a checkpoint keeps besides agent, memory and counters.
        ranks: the trainers that learn as one; all counters are sums over them.
    """

    epoch = 0
    round = 0
    round_steps = 0
    total_updates = 0
    _is_awaited = False  # whether a worker of this rank has waited for training
    _came = _tasks = 0  # samples of this rank; those that allow training in lockstep
    _heard = _counted = Vote()  # newest vote of all ranks; this rank's part of it

    def __init__(
        self,
        env_cls: SpacesOf | None = None,
        memory_cls: MemoryFactory | None = None,
        training_agent_cls: AgentFactory | None = None,
        *by_position: Any,
        agent_scheduler: AgentScheduler | None = None,
        **schedule: Any,
    ) -> None:
        """Store the fields, and make memory and agent.

        Raises:
            ConfigError: a factory is missing, or a number is out of range.
            MissingExtraError: profiling is on, but pyinstrument is not installed.
        """
        given = dict(zip(_BY_POSITION[: len(by_position)], by_position, strict=True))
        self.agent_scheduler: AgentScheduler | None = given.pop("agent_scheduler", agent_scheduler)
        super().__init__(**given, **schedule)
        self.env_cls: SpacesOf = (
            env_cls if isinstance(env_cls, Sequence) else _factory("env_cls", env_cls)
        )
        self.memory_cls = _factory("memory_cls", memory_cls)
        self.training_agent_cls = _factory("training_agent_cls", training_agent_cls)
        if self.profiling and importlib.util.find_spec("pyinstrument") is None:
            raise MissingExtraError("profiling=True needs pyinstrument: pip install pyinstrument")
        if self.device:
            refuse_device(self.device)
        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.observation_space, self.action_space = _spaces_of(self.env_cls)
        self.memory, self.agent = self._make_parts()
        self.ranks = Alone()
        self.kept = Kept()
        self.total_samples = len(self.memory)
        self._began_at = self._published_at = self.clock()
        self.pacer = Pacer(self, self.total_samples)
        parts = {
            "trainer": TunablePart(LIVE, self, self.change),
            "agent": TunablePart(self.agent.tunable, self.agent, self.agent.tune),
            "memory": TunablePart(self.memory.tunable, self.memory, self.memory.tune),
        }
        self.tuning = Tuning(parts, self._check_values)
        self._follow_values()
        self.recent_rewards = RecentRewards(self.reward_window)
        self.diagnosis = Diagnosis()
        self._metrics = RoundMetrics()
        self._learning = LearningWatch(self.agent, self.memory, self.diagnosis, self.recent_rewards)
        self._listeners: tuple[Listener, ...] = (
            self._metrics,
            self.recent_rewards,
            self.tuning,
            self._learning,
        )

    def _make_parts(self) -> tuple[MemoryDataloading, TrainingAgent]:
        """Make memory and agent. Raises ConfigError if they do not fit each other."""
        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        memory_cls = completed(
            self.memory_cls,
            gamma=argument_of(self.training_agent_cls, "gamma"),
            held_out=self.held_out_share,
            **spaces,
        )
        memory = memory_cls(nb_steps=self.steps, device=self.device)
        agent = self.training_agent_cls(device=self.device, **spaces)
        actor = agent.get_actor()
        if not isinstance(actor, ActorModule):
            name = f"{type(agent).__name__}.get_actor"
            raise unexpected(name, actor, "an instance of ActorModule")
        refuse_two_discounts(memory, agent)
        if memory.mini_races is not None and not agent.takes_time_left:
            raise ConfigError(
                f"the memory draws mini-races, but {type(agent).__name__} does not take the "
                "time that is left: leave mini_races out, or take an agent that does (IQNAgent)"
            )
        return memory, agent

    def join(self, ranks: Alone) -> None:
        """Learn as one with other trainers. Call it before the first training step."""
        self.ranks = ranks
        self._learning.join(ranks.size)
        if isinstance(ranks, Ranks):
            self.agent.join(ranks)

    def start_from(self, weights: Weights, training_steps: int) -> None:
        """Begin with the policy of another training, see `TrainingAgent.start_from`. The diagnosis
        then does not expect returns to rise.
        """
        self.agent.start_from(weights, training_steps)
        self.diagnosis.returns.begin_trained()

    def tune(self, values: Mapping[str, float | None]) -> Future[None]:
        """Change hyper-parameters while training goes on; any thread may call this.

        The new values apply from the next round, all or none of them, and are kept in checkpoints.
        With several ranks, only rank 0 may request changes.

        Args:
            values: by their names in an experiment, e.g. {"agent.lr_actor": 1e-4, "trainer.steps":
                100}: those in the `tunable` of agent and memory, and the fields `options.LIVE` of
                the schedule.

        Returns:
            A future that is done when they have changed, or raises ConfigError if one of them
            cannot.

        Raises:
            ConfigError: one of them cannot change, or is not a valid number.
        """
        return self.tuning.ask(values)

    def _check_values(self) -> None:
        """Raise ConfigError if the values of schedule, agent and memory contradict each other."""
        refuse_two_discounts(self.memory, self.agent)
        self.pacer.check(self._limit())

    def _follow_values(self) -> None:
        """Apply the schedule's current values to memory and pacer."""
        self.memory.nb_steps = self.steps
        self.pacer.follow(self._limit(), self.total_updates, self.total_samples)

    def _follow_discount(self) -> None:
        """Let the memory sum rewards with the agent's discount, which a scheduler may have changed.

        Raises:
            ConfigError: the memory cannot change its discount.
        """
        gamma = self.agent.gamma
        if gamma is not None and self.memory.gamma not in (None, gamma):
            self.memory.tune(gamma=gamma)

    def _limit(self) -> float:
        """Return the most training steps per sample."""
        limit = self.max_training_steps_per_env_step
        if self.sample_uses is not None:
            batch_size = self.memory.batch_size * self.ranks.size
            limit = min(limit, self.sample_uses / batch_size * (1.0 - self.memory.held_out))
        return limit

    # -- the schedule

    def run_epoch(
        self,
        interface: TrainerInterface,
        listeners: Sequence[Listener] = (),
        should_stop: StopAsked = _never,
    ) -> list[Record]:
        """Train for `rounds` x `steps` training steps, or finish an epoch that was stopped.

        Args:
            interface: brings samples and takes policies.
            listeners: notified of all that happens.
            should_stop: called between training steps.

        Returns:
            The metrics of all rounds.
        """
        self._interface = interface
        self._told = (*self._listeners, *listeners)
        self._should_stop = should_stop
        if self.agent_scheduler is not None:
            self.agent_scheduler(self.agent, self.epoch)
            self._follow_discount()
        records: list[Record] = []
        stops = False
        self._begin_metrics()
        while self.round < self.rounds and not stops:
            self.tuning.begin_round(self.ranks)
            self._follow_values()
            with (
                _profiled() if self.profiling else contextlib.nullcontext(),
                contextlib.suppress(_StopTraining),
            ):
                self._run_round()
                self.round += 1
            is_due = self._metrics.duration_s >= self.metrics_interval_s
            vote = self._vote(should_stop(), is_due)
            stops = vote.stop
            if stops or vote.due or self.round >= self.rounds:
                records.append(self._close_round())
                self._begin_metrics()
        if self.round >= self.rounds:
            self.epoch += 1
            self.round = 0
        return records

    def _run_round(self) -> None:
        self._wait_for_samples()
        for batch in itertools.islice(self.memory, max(0, self.steps - self.round_steps)):
            self._train(batch)
            if self._is_publication_due():
                self.publish(self._interface)
            if self.pacer.in_lockstep or self.total_updates % self.update_buffer_interval == 0:
                self._take_samples()
            if self.round_steps < self.steps:
                self._wait_for_samples()
        self.round_steps = 0

    def _train(self, batch: Batch) -> None:
        metrics = self.agent.train(batch)
        if not isinstance(metrics, Mapping):
            agent = type(self.agent).__name__
            raise ConfigError(
                f"{agent}.train returned {one_line(metrics, 80)}; expected a dict of metrics"
            )
        for listener in self._told:
            listener.on_step(batch, metrics)
        self.total_updates += 1
        self.round_steps += 1
        self.ranks.check(self.agent, self.total_updates)

    def publish(self, interface: TrainerInterface) -> None:
        """Publish the actor between two training steps; raises what
        `TrainerInterface.broadcast_model` does.
        """
        self._published_at = self.clock()
        self.kept.version = interface.broadcast_model(self.agent.get_actor())
        self._metrics.note_published(self.kept.version)

    def _wait_for_samples(self) -> None:
        """Pause while training would run ahead of the environment, or the memory holds too few
        samples.
        """
        if self._may_train(may_be_late=True) or self._may_train():
            return
        longest_s = math.inf if self.ranks.size == 1 else _OTHERS_WAIT_S
        with self._metrics.idle():
            for _ in self._reminders():
                self._take_samples(min(self.sleep_between_buffer_retrieval_attempts, longest_s))
                if self._may_train():
                    return

    def _may_train(self, may_be_late: bool = False) -> bool:
        """Whether to train now: either all ranks do or none. Raises _StopTraining if a rank is to
        end.
        """
        vote = self._vote(self._should_stop(), may_be_late=may_be_late)
        if vote.stop:
            raise _StopTraining
        return vote.ready and self.pacer.may_train(self.total_updates, self.total_samples)

    def _is_publication_due(self) -> bool:
        if self.total_updates % self.update_model_interval:
            return False
        if not self.update_model_interval_s:
            return True
        since_s = self.clock() - self._published_at
        return self._vote(self._should_stop(), since_s >= self.update_model_interval_s).due

    def _vote(self, stop: bool, is_due: bool = False, may_be_late: bool = False) -> Vote:
        """Exchange the state of this rank with all others, and count the samples that have arrived
        at any of them.
        """
        pacer = self.pacer
        stop = stop or self.elapsed_s > self.max_minutes * 60
        mine = Vote(self.memory.ready, stop, is_due, self._in_lockstep, self._came, self._tasks)
        before = self._heard
        self._heard, self._counted = self.ranks.vote(mine, may_be_late)
        vote = self._heard
        if vote.in_lockstep:
            pacer.enter_lockstep(self.total_updates)
        if vote.samples > before.samples:
            self.diagnosis.returns.begin(self.total_updates)
            pacer.before_samples(self.total_updates, self.total_samples)
        self.total_samples += vote.samples - before.samples
        pacer.add_tasks(vote.tasks - before.tasks)
        return vote

    # -- samples

    def _take_samples(self, timeout_s: float = 0.0) -> None:
        """Put arrived samples into the memory; take no more from a worker process whose samples do
        not fit. In lockstep, let the workers continue whose training steps are done.
        """
        taken = []
        rejected = set()
        for delivery in self._interface.retrieve(timeout_s):
            receipt = delivery.receipt
            if receipt is not None and receipt[:2] in rejected:
                continue
            try:
                self._append(delivery)
            except MemoryContractError as error:
                is_a_misfit = self.memory.holds_samples and not isinstance(
                    error, PipelineMismatchError
                )
                # if even the first samples do not fit, the memory's arguments may be wrong instead
                if receipt is None or not is_a_misfit:
                    raise
                self._interface.reject(receipt, str(error))
                rejected.add(receipt[:2])
            else:
                taken.append(delivery)
                self._tell(delivery)
        if taken:
            self._interface.confirm(taken)
        for receipt in self.pacer.done(self.total_updates):
            self._interface.note_trained(receipt)

    def _append(self, delivery: Delivery) -> None:
        buffer = delivery.buffer
        # the pacer enters lockstep by the next vote, so that all ranks do after the same step
        self._is_awaited |= delivery.awaits
        if len(buffer):
            self.memory.append(buffer)
            self._came += len(buffer)
            beyond = self._samples_so_far - self.start_training
            if self._in_lockstep and beyond > 0 and self.memory.ready:
                are_resets = [one for block in buffer.blocks for one in block.is_reset.tolist()]
                self._tasks += are_resets[-beyond:].count(False)
        if delivery.awaits and delivery.receipt is not None:
            self.pacer.wait_for(delivery.receipt, self._tasks - self._counted.tasks)

    @property
    def _in_lockstep(self) -> bool:
        return self._is_awaited or self.pacer.in_lockstep

    @property
    def _samples_so_far(self) -> int:
        """The samples that all ranks have counted, plus those of this rank that are not counted
        yet.
        """
        return self.total_samples + self._came - self._counted.samples

    # -- reports

    def _reminders(self) -> Iterator[None]:
        """On each iteration, report what is missing if training has waited for long, and how far
        the warm-up is.
        """
        came = -1
        silent_since = interval_s = remind_at = counted_at = -math.inf
        while True:
            yield
            now = self.clock()
            before = came
            came = self._awaited()
            if came != before:
                silent_since = now
                interval_s = _FIRST_REMINDER_S
                remind_at = now + interval_s
            elif now >= remind_at and (self.ranks.rank == 0 or not self.memory.ready):
                self._remind(now - silent_since)
                interval_s = min(2 * interval_s, _LONGEST_REMINDER_S)
                remind_at += interval_s
            if self.total_samples < self.start_training and now - counted_at >= _WARM_UP_EVERY_S:
                counted_at = now
                counts = {
                    "start_training": self.start_training,
                    "env_steps_total": self.total_samples,
                }
                self._say("warm_up", counts)

    def _awaited(self) -> int:
        """The number of samples so far: of all ranks, or of this one alone while it has too few to
        draw from. Samples beyond `start_training` count only if the memory draws from them.
        """
        if self.memory.ready:
            return self.total_samples
        return min(self._came, max(1, self.start_training))

    def _remind(self, waited_s: float) -> None:
        """Say which workers are missing, or that the memory makes nothing of their samples."""
        if self.memory.ready or self._came < max(1, self.start_training):
            log.warning("no samples for %.0f s: %s", waited_s, self._interface.who_is_missing())
            return
        log.warning(
            "nothing to train on for %.0f s: %d samples have come, and %s makes %d transitions of "
            "them, none that begins and ends in one episode: look at its memory_size and __len__",
            *(waited_s, self._came, type(self.memory).__name__, len(self.memory)),
        )

    def _tell(self, delivery: Delivery) -> None:
        for listener in self._told:
            listener.on_samples(delivery)
        for stats in delivery.episodes:
            counts = {"env_steps_total": self._samples_so_far}
            self._say("episode", msgspec.to_builtins(stats) | counts)

    def _say(self, kind: str, record: Record) -> None:
        record = {"kind": kind, "time_s": self.elapsed_s, **record}
        for listener in self._told:
            listener.on_record(record)

    def _begin_metrics(self) -> None:
        self._metrics.begin(self.epoch, self.round, self.total_updates, self.total_samples)

    def _close_round(self) -> Record:
        numbers = {"memory_transitions": len(self.memory)} | self._interface.fleet()
        mine = msgspec.msgpack.encode((self._metrics.episodes, numbers))
        kind = tuple[tuple[EpisodeStats, ...], dict[str, int | float]]
        for rank, said in enumerate(self.ranks.gather(mine)):
            if rank != self.ranks.rank:
                episodes, others = msgspec.msgpack.decode(said, type=kind)
                self._tell(Delivery(Buffer(), episodes))
                numbers = together(numbers, others)
        record: Record = {
            "kind": "round",
            "time_s": self.elapsed_s,
            "training_steps_total": self.total_updates,
            "env_steps_total": self.total_samples,
            "training_steps_per_env_step_limit": self.pacer.limit,
            **numbers,
        }
        for listener in self._told:
            listener.on_round(record)
        self._say("round", record)
        return record

    # -- end and state

    def is_over(self, should_stop: StopAsked = _never) -> bool:
        """Whether all epochs are done, or on any rank time is up or a stop was requested."""
        return self.epoch >= self.epochs or self._vote(should_stop()).stop

    def clock(self) -> float:
        """Return seconds of a clock that never goes back."""
        return time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since construction, plus those of the sessions that this one resumes."""
        return self.clock() - self._began_at

    @elapsed_s.setter
    def elapsed_s(self, seconds: float) -> None:
        self._began_at = self.clock() - seconds

    def __getstate__(self) -> dict[str, Any]:
        """Pickle all but what the newest epoch was given."""
        state = vars(self) | {"elapsed_s": self.elapsed_s}
        return {name: value for name, value in state.items() if name not in _OF_AN_EPOCH}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled training, perhaps where the clock is another one."""
        elapsed_s = state.pop("elapsed_s")
        vars(self).update(state)
        self.elapsed_s = elapsed_s
        self._published_at = self.clock()

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return the state of the schedule as plain values, for a checkpoint; agent and memory save
        theirs separately.
        """
        return {
            "counters": {name: getattr(self, name) for name in _COUNTERS},
            "pacer": self.pacer.state_dict(),
            "tuning": self.tuning.state_dict(),
            "returns": dict(vars(self.diagnosis.returns)),
        }

    def load_state_dict(self, state: Mapping[str, dict[str, Any]]) -> None:
        """Restore what `state_dict` returned, and continue from there."""
        for name, count in state["counters"].items():
            setattr(self, name, count)
        self.tuning.load_state_dict(state["tuning"])
        self.pacer.load_state_dict(state["pacer"])
        if self._limit() == math.inf:  # a worker that still gathers in lockstep is refused
            self.pacer.leave_lockstep()
        self._follow_values()
        vars(self.diagnosis.returns).update(state["returns"])


def _factory(name: str, given: _FactoryT | None) -> _FactoryT:
    """Return what makes a part of the training; raise ConfigError if that is missing, or a part."""
    if given is None:
        raise ConfigError(f"TrainingOffline needs {name}")
    if not callable(given):
        raise ConfigError(
            f"{name} is an instance of {type(given).__name__}; expected a class, a function or a "
            "partial of one"
        )
    return given


def _spaces_of(env_cls: SpacesOf) -> tuple[Space, Space]:
    if isinstance(env_cls, Sequence):
        if len(env_cls) != 2:
            raise ConfigError(
                f"env_cls as a tuple is (observation_space, action_space); it has {len(env_cls)} "
                "items"
            )
        return env_cls[0], env_cls[1]
    try:
        with contextlib.closing(env_cls()) as env:
            return env.observation_space, env.action_space
    except TmrlLikeError:
        raise
    except Exception as error:
        raise EnvironmentFaultError(
            "the environment raised while it was made, to read its spaces: "
            f"{one_line(error)}{place_of(error)}"
        ) from error


@contextlib.contextmanager
def _profiled() -> Iterator[None]:
    from pyinstrument import Profiler

    with Profiler() as profiler:
        yield
    log.info("%s", profiler.output_text(unicode=True))
