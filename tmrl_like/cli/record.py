"""`tmrl-like record`: a data set from the environment, for `dataset_path`, without server and trainer."""

from __future__ import annotations

import dataclasses
from typing import Any

from tmrl_like.actor import ActorModule
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.check import WITHOUT_LIMITS, Traffic, collect_traffic
from tmrl_like.cli.episodes import find_policy
from tmrl_like.cli.stopping import Stopper
from tmrl_like.cli.trainer import memory_factory
from tmrl_like.cli.worker import make_standalone, prepare
from tmrl_like.config.experiment import Experiment
from tmrl_like.errors import ConfigError
from tmrl_like.memories.demonstrations import WithDemonstrations
from tmrl_like.memory_dataloading import MemoryDataloading
from tmrl_like.types import Buffer

_PARTS = ("env", "actor", "memory", "sample_compressor", "obs_preprocessor")


class RandomActor(ActorModule):
    """Draws from the action space."""

    def act(self, obs: Any, test: bool = False) -> Any:
        """An action, whatever the observation."""
        return self.action_space.sample()


def main(arguments: Arguments) -> int:
    """Run episodes, put them into the experiment's memory, write what is in it."""
    Stopper().listen(arguments.supervised)
    experiment = prepare(arguments, "record", _PARTS)
    if arguments.random:
        experiment = dataclasses.replace(experiment, actor=RandomActor)
    is_stored = not (arguments.random or arguments.expert)
    policy = find_policy(experiment, arguments.policy) if is_stored else None
    with make_standalone(experiment, policy, outbox=WITHOUT_LIMITS) as worker:
        worker.is_expert = arguments.expert
        traffic = collect_traffic(worker, arguments.episodes)
    memory = _filled(experiment, traffic)
    file = _data_set_of(memory, arguments.expert).save_dataset(arguments.out)
    print(f"{file}: {traffic.samples} samples of {arguments.episodes} episodes; start a run with it: dataset_path")
    return 0


def _filled(experiment: Experiment, traffic: Traffic) -> MemoryDataloading:
    memory: MemoryDataloading = memory_factory(experiment)(nb_steps=1, device="cpu")
    if traffic.samples > memory.memory_size:
        raise ConfigError(
            f"the memory has room for {memory.memory_size} samples, recorded were {traffic.samples}: raise its "
            "memory_size, or record fewer episodes"
        )
    for block in traffic.blocks:
        memory.append(Buffer(stream="recorded", blocks=(block,)))
    return memory


def _data_set_of(memory: MemoryDataloading, is_expert: bool) -> MemoryDataloading:
    """The memory whose class will read the data set."""
    if isinstance(memory, WithDemonstrations):
        return memory.demonstrations if is_expert else memory.own
    return memory


__all__ = ["RandomActor", "main"]
