"""`tmrl-like record`: a data set from the environment, for the memory's `dataset_path`, without server and trainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.check import traffic_of_episodes
from tmrl_like.cli.stopping import Stopper
from tmrl_like.cli.worker import find_policy, prepare
from tmrl_like.errors import EnvironmentFaultError
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay.data_sets import refuse_taken, write_log

_PARTS = ("env", "actor", "memory", "sample_compressor", "obs_preprocessor")


class RandomActor(ActorModule):
    """Draws from the action space."""

    def act(self, obs: Any, test: bool = False) -> Any:
        """An action, whatever the observation."""
        return self.action_space.sample()


def main(arguments: Arguments) -> int:
    """Run episodes, and write the packets that a worker would have sent."""
    Stopper(arguments.supervised)
    folder = Path(arguments.out)
    refuse_taken(folder)  # before the experiment's code is imported, which takes its time
    experiment = prepare(arguments, "record", _PARTS)
    drawn = {"actor_module_cls": RandomActor} if arguments.random else {}
    is_stored = not (arguments.random or arguments.expert)
    policy = find_policy(experiment, arguments.policy) if is_stored else None

    def episodes() -> Iterator[list[tuple[bytes, int]]]:
        with experiment.make_standalone(policy, **drawn) as worker:
            worker.be_expert(arguments.expert)
            for traffic in traffic_of_episodes(worker, arguments.episodes, experiment.worker.outbox):
                yield [(message, packet.samples) for packet, message in traffic.packets]
                done.append(traffic.samples)

    done = list[int]()
    try:
        samples = write_log(folder, episodes())
    except EnvironmentFaultError as error:
        if not done:
            raise
        raise EnvironmentFaultError(
            f"{error}; kept in {folder}: {len(done)} of {arguments.episodes} episodes"
        ) from None
    made = f"{folder}: {samples} samples of {arguments.episodes} episodes"
    print(f"{made}; start a run with it: --memory.dataset_path {folder}")
    return 0
