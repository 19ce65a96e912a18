"""The racing game: its own clock, what an agent sees of it, who drives it, and how it ends."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from tmrl_like.base.functional import partial
from tmrl_like.base.processes import family_of, is_alive
from tmrl_like.cli.record import RandomActor
from tmrl_like.envs.racing import MirroredLaps, RacingEnv, RacingInterface, RoadDriver, demonstration
from tmrl_like.envs.racing.racing_game import STATE, TICK_S, RacingGame
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.envs.trajectory import RewardOptions, save_trajectory
from tmrl_like.errors import ConfigError, EnvironmentFaultError
from tmrl_like.networking import RolloutWorker
from tmrl_like.worker.options import WorkerOptions

GREEN, GREY = (102, 230, 102), (102, 102, 102)
REWARD = RewardOptions(max_distance=12.0, reward_per_point=1.0)


def state(x: float = 0.0, y: float = 0.0, bend: float = 0.0, **values: Any) -> Any:
    """A state of the game: a road 20 pixels wide that bends by so many pixels at its far end."""
    made = np.zeros((), STATE)
    made["position"] = (x, y)
    made["frame"][:] = GREEN
    for row in range(84):
        middle = 48 + int(bend * (1 - row / 71) ** 2)
        made["frame"][row, max(0, middle - 10) : max(0, middle + 11)] = GREY
    for name, value in values.items():
        made[name] = value
    return made


class Track:
    """Stands for the game: shows one state after another, remembers the controls."""

    def __init__(self, states: list[Any]) -> None:
        self.states, self.at, self.controls = states, -1, (0.0, 0.0, 0.0)

    def look(self) -> Any:
        self.at = min(self.at + 1, len(self.states) - 1)
        return self.states[self.at]

    def drive(self, steering: float, gas: float, brake: float) -> None:
        self.controls = (steering, gas, brake)

    def restart(self) -> None:
        self.at = -1

    def close(self) -> None:
        pass


def interface(states: list[Any], **options: Any) -> RacingInterface:
    made = RacingInterface(reward=REWARD, **options)
    made._game = Track(states)  # type: ignore[assignment]
    return made


# -- the game in its process -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def game() -> Iterator[RacingGame]:
    pytest.importorskip("Box2D")
    made = RacingGame(1)
    yield made
    made.close()
    assert not any(map(is_alive, family_of(made.pid)))


def test_the_clock_runs_while_nobody_steps_and_no_faster_than_it_should(game, until):
    began, first = time.perf_counter(), game.look()["tick"]
    until(lambda: game.look()["tick"] >= first + 20)
    assert time.perf_counter() - began > 18 * TICK_S


def test_a_command_stays_in_effect_until_the_next(game, until):
    game.drive(0.0, 1.0, 0.0)
    until(lambda: game.look()["speed"] > 5.0)
    game.drive(0.0, 0.0, 1.0)
    until(lambda: game.look()["speed"] < 1.0)


def test_a_restart_puts_the_car_where_the_demonstration_begins(game, until):
    game.drive(-1.0, 1.0, 0.0)
    until(lambda: game.look()["speed"] > 5.0)
    game.restart()
    start = game.look()
    assert start["speed"] < 0.5
    assert np.linalg.norm(start["position"] - demonstration(1)[0]) < 3.0


def test_at_the_start_the_road_goes_ahead_and_the_car_is_in_its_middle(game):
    game.restart()
    (_, scans), _ = interface([game.look()], history=1).reset()
    left, ahead, right = scans[0, [0, 9, 18]] * 70
    assert ahead > 40
    assert left == pytest.approx(right, abs=2)
    assert 8 <= left <= 12


def test_a_game_that_stands_still_or_has_died_is_reported(monkeypatch, until):
    pytest.importorskip("Box2D")
    game = RacingGame(1)
    try:
        if hasattr(signal, "SIGSTOP"):
            monkeypatch.setattr("tmrl_like.envs.racing.racing_game._SILENT_FOR_S", 0.3)
            os.kill(game.pid, signal.SIGSTOP)
            with pytest.raises(EnvironmentFaultError, match=r"the racing game has sent no state for 0\.3 s"):
                until(lambda: game.look() is None)
        process = psutil.Process(game.pid)
        process.kill()
        until(lambda: not is_alive(process))
        with pytest.raises(EnvironmentFaultError, match=r"^the racing game's process ended with -?\d+$"):
            game.look()
        with pytest.raises(EnvironmentFaultError, match="process ended with"):
            game.restart()
    finally:
        game.close()
        game.close()
    assert not process.is_running()


ORPHAN = """
import os
from tmrl_like.envs.racing.racing_game import RacingGame

if __name__ == "__main__":
    print(RacingGame(1).pid, flush=True)
    os._exit(1)
"""


def test_a_game_ends_with_the_process_that_started_it(tmp_path, until):
    pytest.importorskip("Box2D")
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, script], env=environment, stdout=subprocess.PIPE, timeout=60)
    pid = int(done.stdout)
    until(lambda: not any(map(is_alive, family_of(pid))))


def test_a_game_that_is_killed_is_a_fault_and_is_started_again(monkeypatch):
    pytest.importorskip("Box2D")
    monkeypatch.setattr("tmrl_like.envs.supervision._MAX_BACKOFF_S", 0.0)
    env = SupervisedEnv(lambda: RacingEnv(reward=REWARD))
    try:
        env.run(env.reset)
        running = psutil.Process(env.env.unwrapped.interface._game.pid)
        running.kill()
        with pytest.raises(EnvironmentFaultError, match=r"^the racing game's process ended") as fault:
            for _ in range(100):
                env.run(lambda: env.step(np.zeros(2, np.float32)))
        env.rebuild(fault.value)
        env.run(env.reset)
        obs, _, terminated, truncated, _ = env.run(lambda: env.step(np.zeros(2, np.float32)))
        assert env.env.observation_space.contains(obs)
        assert not terminated
        assert not truncated
        again = psutil.Process(env.env.unwrapped.interface._game.pid)
    finally:
        env.close()
    assert not is_alive(again)


# -- the interface -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "shape", "dtype"),
    [
        ({"observation": "lidar", "history": 3}, (3, 19), np.float32),
        ({"observation": "image", "history": 4}, (4, 64, 64), np.uint8),
        ({"observation": "image", "history": 2, "grey": False, "image_size": (48, 32)}, (2, 48, 32, 3), np.uint8),
    ],
)
def test_observations_are_a_history_of_what_is_seen(options, shape, dtype):
    seen = interface([state(bend=b, speed=30.0, slip=-60.0) for b in (0, 20, 40, 60)], **options)
    space = seen.get_observation_space()
    obs, _ = seen.reset()
    stacks = [obs[1]]
    for _ in range(3):
        obs, *_ = seen.get_obs_rew_terminated_info()
        assert space.contains(tuple(obs))
        stacks.append(obs[1])
    assert space[1].shape == stacks[0].shape == shape
    assert stacks[0].dtype == dtype
    assert obs[0] == pytest.approx([0.3, -1.0, 0.0, 0.0])
    assert (stacks[0] == stacks[0][0]).all()  # before the first one: the first one
    for before, after in itertools.pairwise(stacks):
        assert np.array_equal(after[:-1], before[1:])
        assert not np.array_equal(after[-1], before[-1])


def test_scans_of_different_frames_do_not_share_memory():
    seen = interface([state(), state(bend=40)], history=2)
    first, _ = seen.reset()
    kept = first[1].copy()
    seen.get_obs_rew_terminated_info()
    assert np.array_equal(first[1], kept)


@pytest.mark.parametrize(
    ("action", "controls"),
    [
        ((0.5, 1.0), (0.5, 0.1, 0.0)),
        ((0.0, -0.5), (0.0, 0.0, 0.0)),
        ((-1.0, -1.0), (-1.0, 0.0, 0.6)),
        ((0.0, 0.25), (0.0, 0.05, 0.0)),
        ((9.0, -9.0), (1.0, 0.0, 0.6)),
    ],
)
def test_steering_and_pedal_are_analog(action, controls):
    seen = interface([state()])
    seen.send_control(np.array(action, np.float32))
    assert seen._game.controls == pytest.approx(controls)


def test_reward_is_progress_along_the_demonstration(tmp_path):
    save_trajectory(tmp_path / "way.npz", np.stack([np.arange(30), np.zeros(30)], axis=1))
    seen = interface([state(), state(3), state(7), state(29)], trajectory=tmp_path / "way.npz", track=5)
    seen.reset()
    steps = [seen.get_obs_rew_terminated_info()[1:3] for _ in range(3)]
    assert steps == [(3.0, False), (4.0, False), (22.0 + 100.0, True)]
    assert isinstance(steps[0][0], np.float32)


def test_info_says_where_the_car_is_at_the_reset_as_well(tmp_path):
    save_trajectory(tmp_path / "way.npz", np.stack([np.arange(31) * 2.0, np.zeros(31)], axis=1))
    seen = interface([state(), state(12, 6.65), state(0.0, -13.3)], trajectory=tmp_path / "way.npz", track=5)
    infos = [seen.reset()[1], *(seen.get_obs_rew_terminated_info()[3] for _ in range(2))]
    assert [info["progress"] for info in infos] == pytest.approx([0.0, 0.2, 0.2])
    assert [info["distance"] for info in infos] == pytest.approx([0.0, 12.0, 12.0])  # far away no point counts
    assert [info["potential"] for info in infos[:2]] == pytest.approx([0.0, -1.0])
    assert [info["position"].tolist() for info in infos] == [
        [0.0, 0.0],
        [12.0, np.float32(6.65)],
        [0.0, np.float32(-13.3)],
    ]
    for info in infos:
        assert [type(info[name]) for name in ("progress", "distance", "potential")] == [np.float32] * 3
        assert info["position"].dtype == np.float32


@pytest.mark.parametrize("options", [{"history": 2}, {"observation": "image"}, {"observation": "image", "grey": False}])
def test_a_mirrored_lap_is_a_lap_on_a_mirrored_road(options):
    def sees(bend: float, sign: float) -> tuple[torch.Tensor, ...]:
        seen = interface([state(bend=bend, speed=20.0, slip=4 * sign, turn_rate=sign, steering=0.2 * sign)], **options)
        (instruments, stack), _ = seen.reset()
        stack = stack.astype(np.float32)
        return torch.from_numpy(instruments)[None], torch.from_numpy(stack)[None], torch.tensor([[0.3 * sign, 0.6]])

    here, there = sees(50.0, 1.0), sees(-50.0, -1.0)
    mirrored = MirroredLaps()
    mirrored._random = SimpleNamespace(random=lambda: 0.9)  # type: ignore[assignment]
    obs, act, rew, *_ = mirrored(here, here[2], 1.0, here, False, False)
    assert rew == 1.0
    assert torch.equal(act, there[2])
    assert torch.equal(obs[0], there[0])
    assert torch.equal(obs[2], there[2])
    # not exactly: the car is half a pixel off the frame's middle
    assert float((obs[1] - there[1]).abs().mean()) < 0.1 * float((here[1] - there[1]).abs().mean())
    single = tuple(part[0].numpy() for part in here)
    as_arrays, *_ = mirrored(single, single[2], 1.0, single, False, False)
    assert all(np.array_equal(array, part[0].numpy()) for array, part in zip(as_arrays, obs, strict=True))


@pytest.mark.parametrize(("inputs", "rows"), [("keys", 9), ("fine", 15), ([[0.0, -0.5], [0.5, 1], [-0.5, 1]], 3)])
def test_a_mirrored_number_is_the_row_that_steers_the_other_way(inputs, rows):
    pytest.importorskip("Box2D")
    env = RacingEnv(inputs=inputs)
    table = env.unwrapped.table
    assert env.action_space.n == rows
    assert [space.n for space in env.observation_space[2:]] == [rows]
    assert table(env.default_action).tolist() == [0.0, -0.5]
    mirrored = MirroredLaps(inputs=inputs)
    mirrored._random = SimpleNamespace(random=lambda: 0.9)  # type: ignore[assignment]
    act = torch.arange(rows)
    obs = torch.zeros(rows, 4), torch.zeros(rows, 2, 19), act
    mirrored_obs, mirrored_act, *_ = mirrored(obs, act, 1.0, obs, False, False)
    assert torch.equal(mirrored_obs[2], mirrored_act)
    for number, image in enumerate(mirrored_act.tolist()):
        assert table(image).tolist() == [-table(number)[0], table(number)[1]]
        single = tuple(part[number].numpy() for part in obs[:2])
        alone = mirrored((*single, np.int64(number)), np.int64(number), 1.0, (*single, np.int64(number)), False, False)
        assert alone[1] == alone[0][2] == image
        assert type(alone[1]) is np.int64
    env.close()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[0.0, 1.0], [0.3, 1.0]], "row 1 of the table of inputs has no mirror image"),
        ("kees", "no table of inputs 'kees'; did you mean keys?"),
        ([[0.0, 1.0, 2.0]], "row 0 of the table of inputs is"),
    ],
)
def test_a_table_that_cannot_be_mirrored_is_one_line(inputs, message):
    with pytest.raises(ConfigError, match=message) as refused:
        MirroredLaps(inputs=inputs)
    assert "\n" not in str(refused.value)


def test_numbers_are_not_mirrored_without_their_table():
    mirrored = MirroredLaps()
    mirrored._random = SimpleNamespace(random=lambda: 0.9)  # type: ignore[assignment]
    act = torch.tensor([1, 2])
    obs = torch.zeros(2, 4), torch.zeros(2, 2, 19), act
    with pytest.raises(ConfigError, match="give MirroredLaps the environment's `inputs`"):
        mirrored(obs, act, 1.0, obs, False, False)


def test_the_environment_has_rtgyms_spaces_and_starts_no_game_for_them():
    pytest.importorskip("Box2D")
    before = psutil.Process().children()
    env = RacingEnv(observation="image", history=3, act_buf_len=2)
    assert [space.shape for space in env.observation_space] == [(4,), (3, 64, 64), (2,), (2,)]
    assert env.time_step_s == 0.06
    assert psutil.Process().children() == before
    env.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observation": "radar"}, "expected lidar or image"),
        ({"track": 7}, "no demonstration of track 7"),
        ({"trajectory": "nowhere.npz"}, "no trajectory at nowhere.npz"),
        ({"history": 0}, "history is 0; expected 1 or more"),
        ({"track": -1}, "track is -1; expected"),
        ({"observation": "image", "image_size": (100_000, 64)}, "4096 or less"),
        ({"time_step_duration": math.nan}, "time_step_duration is nan"),
        ({"time_step_duration": math.inf}, "time_step_duration is inf"),
        ({"ep_max_length": 0}, "ep_max_length is 0"),
        ({"act_buf_len": 0}, "act_buf_len is 0"),
    ],
)
def test_a_mistake_in_an_argument_is_one_line(options, message):
    pytest.importorskip("Box2D")
    with pytest.raises(ConfigError, match=message) as refused:
        RacingEnv(**options)
    assert "\n" not in str(refused.value)


def test_a_demonstration_of_another_kind_is_refused(tmp_path):
    save_trajectory(tmp_path / "way.npz", np.ones((5, 3)))
    with pytest.raises(ConfigError, match="have 3 coordinates, this environment's 2"):
        demonstration(1, tmp_path / "way.npz")


# -- who drives --------------------------------------------------------------------------------------


def test_the_script_steers_to_where_the_road_goes_and_brakes_before_its_end():
    def drives(**values):
        seen = interface([state(**values)], history=1)
        return RoadDriver(seen.get_action_space(), seen.get_default_action(), 1.0, 1.0)(seen.reset()[0])

    assert drives()[0] == pytest.approx(0.0, abs=0.05)
    assert drives(bend=60)[0] > 0.2
    assert drives(bend=-60)[0] < -0.2
    assert drives(speed=0.0)[1] > -0.5
    assert drives(speed=90.0)[1] < -0.5


def test_a_lap_goes_from_the_start_until_the_car_is_back():
    turns = np.linspace(0.0, 4 * np.pi, 200)
    lap = interface([state(100 * np.cos(turn), 100 * np.sin(turn)) for turn in turns], trajectory="", track=7)
    _, info = lap.reset()
    way, terminated = [info["position"]], False
    while not terminated:
        _, reward, terminated, info = lap.get_obs_rew_terminated_info()
        assert reward == 0.0
        way.append(info["position"])
    assert len(way) == pytest.approx(100, abs=4)
    assert np.linalg.norm(way[-1] - way[0]) < 13.0


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Time-step timed out")  # the machine may be busy
def test_the_script_drives_a_lap_that_the_reward_accepts():
    pytest.importorskip("Box2D")
    rollouts = []
    env_cls = partial(RacingEnv, **RacingEnv.lap_arguments)
    options = WorkerOptions(takeover_in_tests=True)
    how = {"standalone": True, "takeover": RacingEnv.lap_drivers["script"], "on_rollout": rollouts.append}
    with RolloutWorker(env_cls, RandomActor, options=options, **how) as worker:
        assert worker.run_episode().terminated
    reward = RacingInterface(reward=dataclasses.replace(REWARD, forward_limit=10))._reward
    assert any(reward(position)[1] for position in rollouts[0].info["position"])
    assert reward.progress == 1.0
