"""`tmrl-like check`: the whole way of a sample in one process, and every transition compared bit for bit.

Environment, actor, compressor, wire encoding, wire decoding, memory, batch, one training step. What the
environment produced travels beside each sample (CRC debugging) and is compared with what the memory rebuilds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.benchmark import describe_deadline
from tmrl_like.cli.stopping import Stopper
from tmrl_like.cli.tables import print_table
from tmrl_like.cli.trainer import agent_factory, memory_factory
from tmrl_like.cli.worker import make_standalone, prepare
from tmrl_like.config.experiment import Experiment
from tmrl_like.errors import EnvironmentFaultError, MemoryContractError
from tmrl_like.memory_dataloading import MemoryDataloading
from tmrl_like.networking.outbox import OutboxOptions
from tmrl_like.networking.worker import RolloutWorker
from tmrl_like.training_offline import train_step
from tmrl_like.types import Buffer
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import SampleBlock, decode_body

_PARTS = ("env", "actor", "agent", "memory", "sample_compressor", "obs_preprocessor")
_CHECKED_AT_MOST = 20_000
WITHOUT_LIMITS = OutboxOptions(  # nobody acknowledges what is sent here
    max_bytes=1 << 50, max_held_samples=1 << 50, window_bytes=1 << 50
)


@dataclass
class Traffic:
    """What crossed the (imagined) wire."""

    blocks: list[SampleBlock]
    bytes_sent: int

    @property
    def samples(self) -> int:
        """How many samples."""
        return sum(map(len, self.blocks))


def main(arguments: Arguments) -> int:
    """Run some episodes through everything, and report."""
    Stopper().listen(arguments.supervised)
    experiment = dataclasses.replace(prepare(arguments, "check", _PARTS), crc_debug=True)
    with make_standalone(experiment, None, outbox=WITHOUT_LIMITS) as worker:
        _check_spaces(worker)
        traffic = collect_traffic(worker, arguments.episodes)
        _report_timing(worker, traffic)
        _report_traffic(traffic)
        memory = _fill(experiment, traffic)
        _report_memory(memory, traffic)
        _report_training(experiment, worker, memory)
    print("check passed: every transition is what the environment produced")
    return 0


def _check_spaces(worker: RolloutWorker) -> None:
    """Raise EnvironmentFaultError if the first observation is not in the observation space."""
    space = worker.env.observation_space
    obs, _ = worker.reset(collect_samples=False)
    if not space.contains(obs):
        raise EnvironmentFaultError(
            f"the observation of reset() is not in the environment's observation space: got {_outline(obs)}, the "
            f"space is {space}"
        )
    print(f"environment: observations {space}, actions {worker.env.action_space}")


def collect_traffic(worker: RolloutWorker, episodes: int) -> Traffic:
    """Run episodes; take the packets that would have left, and decode them."""
    sent: list[bytes] = []
    for number in range(1, episodes + 1):
        stats = worker.collect_train_episode()
        if stats.fault:
            raise EnvironmentFaultError(stats.fault)
        worker.send_and_clear_buffer()
        worker._outbox.pump(lambda data: sent.append(data) or True, may_send=True)  # type: ignore[func-returns-value]
        print(f"episode {number} of {episodes}: {stats.steps} steps, return {stats.return_:.3f}", flush=True)
    return Traffic(list(_decoded(sent)), sum(map(len, sent)))


def _decoded(sent: list[bytes]) -> Iterator[SampleBlock]:
    for data in sent:
        message, body = m.decode(data)
        for packet, packet_body in m.decode_bundle(body) if isinstance(message, m.Bundle) else [(message, body)]:
            assert isinstance(packet, m.SamplePacket)
            if packet.samples:
                yield decode_body(packet, packet_body)


def _fill(experiment: Experiment, traffic: Traffic) -> MemoryDataloading:
    """Put everything into the experiment's memory, as a trainer would."""
    memory: MemoryDataloading = memory_factory(experiment)(nb_steps=1, device="cpu")
    for block in traffic.blocks:
        memory.append(Buffer(stream="check", blocks=(block,)))
    if isinstance(memory, MemoryDataloading):
        memory.flush()
    if not memory.ready:
        raise MemoryContractError(
            f"{traffic.samples} samples made no transition in {type(memory).__name__}: run more --episodes, or its "
            "history is longer than they are"
        )
    return memory


def _report_memory(memory: MemoryDataloading, traffic: Traffic) -> None:
    """Rebuild every transition: the memory compares it and raises PipelineMismatchError on a difference."""
    number = min(len(memory), _CHECKED_AT_MOST)
    for item in np.linspace(0, len(memory) - 1, number).astype(int).tolist():
        memory[item]
    print(f"memory: {len(memory)} transitions from {traffic.samples} samples; {memory.crc_checked} compared, all equal")


def _report_training(experiment: Experiment, worker: RolloutWorker, memory: MemoryDataloading) -> None:
    env = worker.env
    agent = agent_factory(experiment)(
        observation_space=env.observation_space, action_space=env.action_space, device="cpu"
    )
    metrics = train_step(agent, memory, memory.sample())
    worker.actor.load_weights(agent.get_actor().weights())
    numbers = ", ".join(f"{name} {float(value):.3g}" for name, value in metrics.items())
    print(f"agent: one training step: {numbers}; its weights fit the worker's actor")


def _report_timing(worker: RolloutWorker, traffic: Traffic) -> None:
    nominal_s = getattr(worker.env, "time_step_s", None)
    timings = [(block.timing, ~block.is_reset) for block in traffic.blocks]
    period_ms = np.concatenate([t.period_error_s[own] for t, own in timings]) * 1e3 + (nominal_s or 0.0) * 1e3
    inference_ms = np.concatenate([t.inference_s[own] for t, own in timings]) * 1e3
    rows = [[name, *_percentiles(v)] for name, v in (("time-step", period_ms), ("decision", inference_ms))]
    print_table("milliseconds", ["", "median", "p99", "max"], rows)
    print(describe_deadline(nominal_s, worker.overruns, len(period_ms)))


def _percentiles(values: np.ndarray[Any, Any]) -> list[str]:
    return [f"{v:.2f}" for v in (*np.percentile(values, (50, 99)), values.max())]


def _report_traffic(traffic: Traffic) -> None:
    originals = " (with the originals that are compared)"
    per_sample = traffic.bytes_sent / max(1, traffic.samples)
    print(f"wire: {traffic.samples} samples in {len(traffic.blocks)} packets, {per_sample:.0f} bytes each{originals}")


def _outline(obs: Any) -> str:
    if isinstance(obs, tuple | list):
        return f"{type(obs).__name__} of {', '.join(map(_outline, obs))}"
    if isinstance(obs, np.ndarray):
        return f"{obs.dtype} {obs.shape}"
    return type(obs).__name__


__all__ = ["WITHOUT_LIMITS", "Traffic", "collect_traffic", "main"]
