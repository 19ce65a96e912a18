"""`tmrl-like record`: a data set from the environment, for a memory, or a lap for a reward from it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tmrl_like.base.factories import taken_apart
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.check import traffic_of_episodes
from tmrl_like.cli.prepare import TO_COLLECT, find_policy, prepare
from tmrl_like.cli.stopping import Stopper
from tmrl_like.envs.trajectory import resample, save_trajectory
from tmrl_like.errors import ConfigError, EnvironmentFaultError
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay.data_sets import refuse_taken, write_log


class RandomActor(ActorModule):
    """Draws from the action space."""

    def act(self, obs: Any, test: bool = False) -> Any:
        """An action, whatever the observation."""
        return self.action_space.sample()


def main(arguments: Arguments) -> int:
    """Drive, and write what came of it."""
    Stopper(arguments.supervised)
    return _record_lap(arguments) if arguments.lap else _record_episodes(arguments)


def _record_episodes(arguments: Arguments) -> int:
    """Run episodes, and write the packets that a worker would have sent."""
    folder = Path(arguments.out)
    refuse_taken(folder)  # before the experiment's code is imported, which takes its time
    experiment = prepare(arguments, "record", (*TO_COLLECT, "memory"))
    drawn = {"actor_module_cls": RandomActor} if arguments.random else {}
    policy = None if arguments.random or arguments.expert else find_policy(arguments)
    done = list[int]()

    def episodes() -> Iterator[list[tuple[bytes, int]]]:
        with experiment.make_standalone(policy, **drawn) as worker:
            worker.be_expert(arguments.expert)
            for traffic in traffic_of_episodes(worker, arguments.episodes, experiment.worker.outbox):
                yield [(message, packet.samples) for packet, message in traffic.packets]
                done.append(traffic.samples)

    try:
        samples = write_log(folder, episodes())
    except EnvironmentFaultError as error:
        if not done:
            raise
        kept = f"kept in {folder}: {len(done)} of {arguments.episodes} episodes"
        raise EnvironmentFaultError(f"{error}; {kept}") from None
    made = f"{folder}: {samples} samples of {arguments.episodes} episodes"
    print(f"{made}; start a run with it: --memory.dataset_path {folder}")
    return 0


def _record_lap(arguments: Arguments) -> int:
    """Let the experiment's environment be driven once, and write the way it took."""
    file = Path(arguments.out)
    experiment = prepare(arguments, "record", ("env",))
    env_cls, given = taken_apart(experiment.env)
    demonstrate = getattr(env_cls, "demonstrate", None)
    if demonstrate is None:
        raise ConfigError(
            f"{arguments.place}: {env_cls.__name__} cannot record a demonstration: it has no static "
            "method demonstrate(driver, **init_args) that returns where it drove, [T, 2] or [T, 3]"
        )
    with contextlib.suppress(OSError):  # looked at before somebody drives in vain
        file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise ConfigError(f"--out {file}: expected the name of a file, in a folder that can be written to")
    print(f"{env_cls.__name__}: once around the track, in real time, driven by {arguments.lap} …", flush=True)
    positions = demonstrate(arguments.lap, **given)
    points = resample(positions, arguments.spacing)
    save_trajectory(arguments.out, points)
    print(f"{file}: {len(points)} points from {len(positions)} positions")
    return 0
