"""`tmrl-like check`: sends samples through the whole pipeline in one process, and compares every
transition bit for bit.

The pipeline: environment, actor, compressor, wire encoding, wire decoding, memory, batch, one
training step. What the environment produced travels beside each sample (CRC debugging) and is
compared with what the memory rebuilds.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tmrl_like.agents.agent import TrainingAgent
from tmrl_like.base import tree
from tmrl_like.base.text import counted
from tmrl_like.base.threads import start_thread
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.measured_delays import report_delays
from tmrl_like.cli.prepare import TO_COLLECT, TO_DRIVE, prepare
from tmrl_like.cli.stopping import Stopper
from tmrl_like.cli.tables import print_table
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.errors import ConfigError, EnvironmentFaultError, MemoryContractError, TmrlLikeError
from tmrl_like.experiment import Experiment
from tmrl_like.policies.action_check import action_problem
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.types import Buffer
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import SampleBlock, columns_in, decode_body
from tmrl_like.wire.schema import Array
from tmrl_like.worker.returned import observation_problem
from tmrl_like.worker.tap import SampleTap, Taken
from tmrl_like.worker.timing import Seconds
from tmrl_like.worker.worker import RolloutWorker

_PARTS = (*TO_COLLECT, "agent", "memory")
_CHECKED_AT_MOST = 20_000
LONGEST_EPISODE = 10_000
_TAKEN_EVERY_S = 0.01


@dataclass
class Traffic:
    """What would have been sent over the network.

    Attributes:
        blocks: the samples.
        packets: (header, message) of each packet with these samples.
        reset_s: how long the reset took, if this is the traffic of one episode.
    """

    blocks: list[SampleBlock] = field(default_factory=list)
    packets: list[tuple[m.SamplePacket, bytes]] = field(default_factory=list)
    reset_s: float = 0.0

    @property
    def samples(self) -> int:
        return sum(map(len, self.blocks))


def main(arguments: Arguments) -> int:
    """Run some episodes through all parts, and report."""
    Stopper(arguments.supervised)
    if arguments.timing:
        return _measure(arguments)
    experiment = prepare(arguments, _PARTS)
    experiment = dataclasses.replace(experiment, crc_debug=True)
    longest = min(experiment.worker.max_samples_per_episode, LONGEST_EPISODE)
    make_env = partial(watched, experiment.env)
    with experiment.make_standalone(env_cls=make_env, max_samples_per_episode=longest) as worker:
        env = worker.env
        print(f"environment: observations {env.observation_space}, actions {env.action_space}")
        agent = experiment.agent_cls(
            observation_space=env.observation_space, action_space=env.action_space, device="cpu"
        )
        whole = Traffic()
        resets_s = []
        for traffic in traffic_of_episodes(worker, arguments.episodes, experiment.worker.outbox):
            whole.blocks += traffic.blocks
            whole.packets += traffic.packets
            resets_s.append(traffic.reset_s)
        _report_timing(worker, whole, resets_s)
        _report_sensors(worker.loop.env)
        if arguments.delay_steps:
            report_delays(worker, arguments, experiment.seed or 0)
        size_bytes = sum(len(message) for _, message in whole.packets)
        print(
            f"wire: {whole.samples} samples in {len(whole.blocks)} packets, "
            f"{size_bytes / max(1, whole.samples):.0f} bytes each (with the originals that are "
            "compared)"
        )
        _report_training(agent, worker, _filled(experiment, whole))
    print("check passed: every transition is what the environment produced")
    return 0


def _measure(arguments: Arguments) -> int:
    """Measure time-steps without collecting samples, and show percentiles."""
    with prepare(arguments, TO_DRIVE).make_standalone() as worker:
        times = worker.measure(arguments.timing)
        _show_times(worker.loop.env, times.overruns, times.period_s, times.inference_s)
    return 0


def _show_times(
    env: SupervisedEnv, overruns: int, period_s: Seconds, inference_s: Seconds, *resets_s: float
) -> None:
    """Print percentiles, and how often the nominal time-step was missed."""
    steps, rows = len(period_s), []
    for name, values_s in (
        ("time-step", period_s),
        ("decision", inference_s),
        ("env.step()", period_s - inference_s),
        ("env.reset()", resets_s),
    ):
        if not len(values_s):
            continue
        shown = np.percentile(values_s, (50, 99, 99.9, 100)) * 1e3
        rows.append([name, *map("{:.2f}".format, shown)])
    print_table(
        f"{counted(steps, 'step')}, milliseconds", ["", "median", "p99", "p99.9", "max"], rows
    )
    if not env.time_step_s:
        print("the environment names no time-step: it does not run in real time")
        return
    missed = f"{counted(overruns, 'overrun')} in {counted(steps, 'step')} ({overruns / steps:.2%})"
    print(f"time-step asked for: {env.time_step_s * 1e3:.1f} ms; {missed}")


def watched(make_env: Callable[[], Any]) -> Any:
    """Make an environment that checks the form of each of its return values. Results that have too
    few or too many parts are left to the supervised environment, which refuses them.
    """
    env = make_env()
    watch = _Watch(env)
    env.reset = functools.update_wrapper(partial(watch.reset, env.reset), env.reset)
    env.step = functools.update_wrapper(partial(watch.step, env.step), env.step)
    return env


class _Watch:
    def __init__(self, env: Any) -> None:
        self._env = env
        self._steps = 0
        self._told_bounds = False

    def reset(self, reset: Callable[..., Any], **options: Any) -> Any:
        result = reset(**options)
        try:
            obs, info = result
        except (TypeError, ValueError):
            info = None
        if isinstance(info, dict):
            self._look(obs, info, "reset()")
        return result

    def step(self, step: Callable[[Any], Any], action: Any) -> Any:
        if problem := action_problem(action, self._env.action_space):
            raise ConfigError(
                f"step {self._steps + 1}: the action is not in the action space: {problem}; clip "
                "or squash it in the actor's act(), also where it explores"
            )
        before = copy.deepcopy(action)
        result = step(action)
        try:
            obs, _, terminated, truncated, info = result
        except (TypeError, ValueError):
            return result
        self._steps += 1
        where = f"step {self._steps}"
        if not all(np.array_equal(now, then) for _, now, then in tree.walk(action, before)):
            raise ConfigError(
                f"{where}: the environment changes the action that it is given, and samples would "
                "hold the changed one; let step() change a copy"
            )
        self._look(obs, info, where)
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                raise ConfigError(f"{where}: {name} is {value!r:.80}; expected True or False")
        return result

    def _look(self, obs: Any, info: Any, where: str) -> None:
        space = self._env.observation_space
        if problem := observation_problem(obs, space):
            raise ConfigError(
                f"{where}: {problem}; correct the environment or its observation_space"
            )
        if not isinstance(info, dict):
            raise ConfigError(f"{where}: info is {info!r:.80}; expected a dict")
        if not self._told_bounds and not space.contains(obs):
            self._told_bounds = True
            print(
                f"note: {where}: the observation is outside the bounds of the observation space",
            )


@contextlib.contextmanager
def taken(
    worker: RolloutWorker, options: OutboxOptions | None = None
) -> Iterator[Callable[[], Traffic]]:
    """Take the samples of a standalone worker. Yields a function that returns those since its last
    call; call it between episodes.

    `options` determine when a packet is sent; the number of waiting packets is not limited.
    """
    tap, over, packets = SampleTap(worker, options), threading.Event(), list[Taken]()
    order = threading.Lock()  # so that packets stay in order

    def take_on() -> None:
        while not over.wait(_TAKEN_EVERY_S):
            tap.refill()
            with order:
                packets.extend(tap.take())

    def traffic() -> Traffic:
        with order:
            packets.extend(tap.take(everything=True))
        whole = Traffic()
        for packet, body, message in packets:
            whole.packets.append((packet, message))
            if packet.samples:
                whole.blocks.append(decode_body(packet, columns_in(message, body)))
        packets.clear()
        return whole

    thread = start_thread(take_on, "tmrl-check")
    try:
        yield traffic
    finally:
        over.set()
        thread.join()
        tap.close()


def traffic_of_episodes(
    worker: RolloutWorker, episodes: int, outbox: OutboxOptions | None = None
) -> Iterator[Traffic]:
    """Run episodes, and yield the traffic of each as soon as it has ended.

    Raises:
        EnvironmentFaultError: a fault of the environment cut an episode.
    """
    with taken(worker, outbox) as take:
        for number in range(1, episodes + 1):
            stats = worker.collect_train_episode()
            if stats.fault:
                raise EnvironmentFaultError(stats.fault)
            traffic = take()
            stepping_s = sum(
                periods_s(block, worker.loop.env.time_step_s).sum() for block in traffic.blocks
            )
            traffic.reset_s = stats.duration_s - stepping_s
            cut = ", cut there: does it ever end?" if stats.steps == LONGEST_EPISODE else ""
            print(
                f"episode {number} of {episodes}: {stats.steps} steps{cut}, return "
                f"{stats.return_:.3f}",
            )
            yield traffic


def periods_s(block: SampleBlock, time_step_s: float) -> Array:
    """Return the time from observation to observation, of each of a block's steps except resets."""
    periods: Array = block.timing.period_error_s[~block.is_reset] + time_step_s
    return periods


def _filled(experiment: Experiment, traffic: Traffic) -> MemoryDataloading:
    """Put all samples into the experiment's memory, and let it rebuild and compare the
    transitions.
    """
    memory: MemoryDataloading = experiment.memory_cls(nb_steps=1, device="cpu")
    for block in traffic.blocks:
        memory.append(Buffer(stream="check", blocks=(block,)))
    if isinstance(memory, MemoryDataloading):
        memory.flush()
    if not memory.ready:
        raise MemoryContractError(
            f"{traffic.samples} samples made no transition in {type(memory).__name__}: run more "
            "--episodes, or its history is longer than they are"
        )
    for item in (
        np.linspace(0, len(memory) - 1, min(len(memory), _CHECKED_AT_MOST)).astype(int).tolist()
    ):
        memory[item]
    held, sent = counted(len(memory), "transition"), counted(traffic.samples, "sample")
    print(f"memory: {held} from {sent}; {memory.crc_checked:,} compared, all equal")
    return memory


def _report_training(
    agent: TrainingAgent, worker: RolloutWorker, memory: MemoryDataloading
) -> None:
    metrics = agent.train(memory.sample())
    if wrong := [name for name, value in metrics.items() if not math.isfinite(value)]:
        raise TmrlLikeError(
            f"one training step gave values that are not finite ({', '.join(wrong)}): look for "
            "very large observations, rewards and bounds of spaces"
        )
    worker.actor.load_weights(agent.get_actor().weights())
    numbers = ", ".join(f"{name} {float(value):.3g}" for name, value in metrics.items())
    print(f"agent: one training step: {numbers}; its weights fit the worker's actor")


def _report_sensors(env: SupervisedEnv) -> None:
    """Report how often each sensor gives a value, with a note if observations repeat values."""
    for sensor in env.sensors:
        print(f"sensor: {sensor.name} gives a value every {sensor.period_s * 1e3:.1f} ms")
        if sensor.period_s > 2.0 * env.time_step_s > 0.0:
            repeats = sensor.period_s / env.time_step_s
            print(
                f"note: {repeats:.0f} observations in a row have the same value of {sensor.name}; "
                "let the observation have its age, too, or the state is not Markov"
            )


def _report_timing(worker: RolloutWorker, traffic: Traffic, resets_s: list[float]) -> None:
    env = worker.loop.env
    period_s = np.concatenate([periods_s(block, env.time_step_s) for block in traffic.blocks])
    inference_s = np.concatenate(
        [block.timing.inference_s[~block.is_reset] for block in traffic.blocks]
    )
    _show_times(env, worker.condition().overruns, period_s, inference_s, *resets_s)
