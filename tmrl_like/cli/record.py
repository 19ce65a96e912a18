"""`tmrl-like record`: records a data set for a memory from the environment, or a lap for a
reward.
"""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_like.base.factories import taken_apart
from tmrl_like.base.functional import place_of
from tmrl_like.base.text import counted, one_line
from tmrl_like.cli.arguments import Arguments, to_type
from tmrl_like.cli.check import traffic_of_episodes
from tmrl_like.cli.prepare import TO_COLLECT, policy_that_drives, prepare
from tmrl_like.cli.stopping import Stopper
from tmrl_like.cli.test import picture_of
from tmrl_like.cli.window import Window
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv
from tmrl_like.envs.trajectory import resample, save_trajectory
from tmrl_like.envs.way import Way
from tmrl_like.errors import ConfigError, EnvironmentFaultError
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay.data_sets import refuse_taken, write_log
from tmrl_like.types import TAKEN_OVER, Driver
from tmrl_like.wire.spaces import Space

_PIECES = 1000  # of a lap that does not suit --spacing


class RandomActor(ActorModule):
    """Draws actions at random from the action space."""

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        """Begin anew, or as the experiment's seed determines."""
        super().__init__(observation_space, action_space)
        action_space.seed(int(np.random.randint(2**31)))

    def act(self, obs: Any, test: bool = False) -> Any:
        """Return a random action, whatever the observation."""
        return self.action_space.sample()

    act_ = act  # an observation with text makes no tensors


def main(arguments: Arguments) -> int:
    """Drive, and write the recording."""
    Stopper(arguments.supervised)
    return _record_lap(arguments) if arguments.lap else _record_episodes(arguments)


def _record_episodes(arguments: Arguments) -> int:
    """Run episodes, and write the packets that a worker would have sent."""
    folder: Path = arguments.out
    refuse_taken(folder)  # before importing the experiment's code, which takes time
    experiment = prepare(arguments, (*TO_COLLECT, "memory", "takeover"))
    drawn = {"actor_module_cls": RandomActor} if arguments.random else {}
    policy = None if arguments.random or arguments.expert else policy_that_drives(arguments)
    done = list[int]()
    taken_over = 0

    def episodes() -> Iterator[list[tuple[bytes, int]]]:
        nonlocal taken_over
        with experiment.make_standalone(policy, **drawn) as worker:
            worker.be_expert(arguments.expert)
            for traffic in traffic_of_episodes(
                worker, arguments.episodes, experiment.worker.outbox
            ):
                yield [(message, packet.samples) for packet, message in traffic.packets]
                done.append(traffic.samples)
                taken_over += sum(
                    int(np.isin(block.timing.source, TAKEN_OVER).sum()) for block in traffic.blocks
                )

    try:
        samples = write_log(folder, episodes())
    except EnvironmentFaultError as error:
        if not done:
            raise
        raise EnvironmentFaultError(
            f"{error}; kept in {folder}: {len(done)} of {arguments.episodes} episodes"
        ) from None
    held, of = counted(samples, "sample"), counted(arguments.episodes, "episode")
    if experiment.takeover is not None:
        held += f" ({taken_over} taken over)"
    start = to_type("--memory.dataset_path", folder)
    print(f"{folder}: {held} of {of}; start a run with it: {start}")
    return 0


def _record_lap(arguments: Arguments) -> int:
    """Let a driver take over the environment for one episode, and write the path that it took."""
    file: Path = arguments.out
    experiment = prepare(arguments, ("env",))
    env_cls: Any
    env_cls, given = taken_apart(experiment.env)
    drivers = getattr(env_cls, "lap_drivers", {})
    if arguments.lap not in drivers:
        known = " or ".join(drivers) or "nobody: its class has no lap_drivers"
        raise ConfigError(
            f"{arguments.place}: {arguments.lap} drives no lap of {env_cls.__name__}; expected "
            f"{known}"
        )
    with contextlib.suppress(OSError):  # checked first, so that nobody drives a lap in vain
        file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() or not os.access(file.parent, os.W_OK):
        raise ConfigError(
            f"--out {file}: expected the name of a new file, in a folder that can be written to"
        )
    print(
        f"{env_cls.__name__}: once around the track, in real time, driven by {arguments.lap} …",
    )
    make_env = partial(env_cls, **given | getattr(env_cls, "lap_arguments", {}))
    options = experiment.worker
    with contextlib.ExitStack() as closing:
        env = SupervisedEnv(make_env, options.hang_timeout_s)
        closing.callback(env.close)
        driver = drivers[arguments.lap](
            action_space=env.env.action_space, default_action=env.default_action
        )
        closing.callback(driver.close)
        window = None
        if arguments.lap == "keyboard" and not getattr(env_cls, "has_window", False):
            window = closing.enter_context(Window(env.stopping.set))
        try:
            positions = env.run(lambda: _drive_lap(env, driver, window))
        except StoppedError:  # the window was closed
            raise KeyboardInterrupt from None
    if positions[0] is None:
        raise ConfigError(
            f"{env_cls.__name__} does not report where it is: expected info['position'], [2] or [3]"
        )
    seen = [one for one in positions if np.isfinite(np.array(one, float)).all()]
    problem = ""  # which must not cost what was driven
    try:
        points = resample(seen, arguments.spacing)
    except ConfigError as error:
        length = Way(seen).length
        if not length:
            raise
        points, problem = resample(seen, length / _PIECES), str(error)
    try:
        save_trajectory(file, points)
    except ConfigError as error:
        file, problem = Path(tempfile.mkdtemp(prefix="lap-"), "lap.npz"), str(error)
        save_trajectory(file, points)
    if problem:
        raise ConfigError(f"{problem}; kept in {file}: {len(points)} points")
    print(f"{file}: {len(points)} points from {len(seen)} of {len(positions)} positions")
    return 0


def _drive_lap(env: SupervisedEnv, driver: Driver, window: Window | None) -> list[Any]:
    """Drive one episode, and return where it went; while the driver gives no action, the
    environment's default action is sent.
    """
    obs, info = env.reset()
    terminated = truncated = False
    positions = list[Any]()
    while True:
        positions.append(copy.deepcopy(info.get("position")))
        if terminated or positions[0] is None:
            return positions
        if truncated:
            raise ConfigError(
                f"the lap did not end within {len(positions) - 1} steps: nothing was recorded; "
                "raise ep_max_length"
            )
        if env.stopping.is_set():
            raise StoppedError
        try:
            action = driver(obs)
        except Exception as error:
            raise ConfigError(f"the driver failed: {one_line(error)}{place_of(error)}") from None
        obs, _, terminated, truncated, info = env.step(
            env.default_action if action is None else action
        )
        if window is not None:
            window.show(picture_of(env.env))
