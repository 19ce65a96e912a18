"""The racing game: its clock, an agent's observations, drivers, and ends of episodes."""

from contextlib import closing
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from house import alone
from kit.refusals import one_line

from tmrl_like import load_experiment
from tmrl_like.base.factories import fitted
from tmrl_like.base.functional import partial
from tmrl_like.cli.record import RandomActor
from tmrl_like.config.document import shipped
from tmrl_like.envs.racing import (
    MirroredLaps,
    RacingEnv,
    RacingInterface,
    demonstration,
    racing_env,
)
from tmrl_like.envs.racing.racing_game import STATE, RacingGame
from tmrl_like.envs.trajectory import RewardOptions, TrajectoryReward, save_trajectory

GREEN, GREY = (102, 230, 102), (102, 102, 102)
REWARD = RewardOptions(max_distance=12.0, reward_per_point=1.0)


def state(x=0.0, y=0.0, bend=0.0, **values):
    """Return a state of the game, with a road 20 pixels wide that is `bend` pixels off at its far
    end.
    """
    made = np.zeros((), STATE)
    for name, value in {"position": (x, y), "frame": GREEN, **values}.items():
        made[name] = value
    for row in range(84):
        middle = 48 + int(bend * (1 - row / 71) ** 2)
        made["frame"][row, max(0, middle - 10) : max(0, middle + 11)] = GREY
    return made


@pytest.fixture
def game(monkeypatch):
    """A stand-in for the game, which records its calls."""
    game = Mock()
    monkeypatch.setattr(racing_env, "RacingGame", lambda track: game)
    return game


@pytest.fixture
def seeing(game):
    """Return a function that makes an interface to a game which shows given states in turn."""

    def make(*states, **options):
        game.look.side_effect = states
        return RacingInterface(reward=REWARD, **options)

    return make


def test_a_restart_puts_the_car_into_the_middle_of_the_road_where_the_demonstration_begins(
    until, seeing
):
    pytest.importorskip("Box2D")
    with closing(RacingGame(1)) as game:
        game.drive(-1.0, 1.0, 0.0)
        until(lambda: game.look()["speed"] > 5.0)
        game.restart()
        start = game.look()
    assert start["speed"] < 0.5
    assert np.linalg.norm(start["position"] - demonstration(1)[0]) < 3.0
    (_, scans), _ = seeing(start, history=1).reset()
    left, ahead, right = scans[0, [0, 9, 18]] * 70
    assert ahead > 40
    assert left == pytest.approx(right, abs=2)
    assert 8 <= left <= 12


# -- the interface ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"observation": "lidar"}, (3, 19)),
        ({"observation": "image", "grey": False, "image_size": (48, 32)}, (3, 48, 32, 3)),
    ],
)
def test_observations_are_instruments_and_a_history_of_what_is_seen(options, shape, seeing):
    straight, bent = (state(bend=bend, speed=30.0, slip=-60.0) for bend in (0, 20))
    interface = seeing(straight, bent, history=3, **options)
    (_, before), _ = interface.reset()
    (instruments, seen), *_ = interface.get_obs_rew_terminated_info()
    assert instruments == pytest.approx([0.3, -1.0, 0.0, 0.0])
    assert seen.shape == shape
    assert np.array_equal(seen[:-1], before[1:])
    assert not np.array_equal(seen[-1], before[-1])


@pytest.mark.parametrize(
    ("action", "controls"),
    [
        ((0.5, 1.0), (0.5, 0.1, 0.0)),
        ((0.0, -0.5), (0.0, 0.0, 0.0)),
        ((9.0, -9.0), (1.0, 0.0, 0.6)),
    ],
)
def test_steering_and_pedal_are_analog(action, controls, game, seeing):
    interface = seeing(state())
    interface.reset()
    interface.send_control(np.array(action, np.float32))
    assert game.drive.call_args.args == pytest.approx(controls)


def test_reward_is_progress_along_the_demonstration(tmp_path, seeing):
    save_trajectory(tmp_path / "way.npz", np.stack([np.arange(30), np.zeros(30)], axis=1))
    states = map(state, (0, 3, 7, 29))
    interface = seeing(*states, trajectory=tmp_path / "way.npz", track=5)
    interface.reset()
    steps = [interface.get_obs_rew_terminated_info()[1:3] for _ in range(3)]
    assert steps == [(3.0, False), (4.0, False), (22.0 + 100.0, True)]
    assert isinstance(steps[0][0], np.float32)


@pytest.mark.parametrize("options", [{"history": 2}, {"observation": "image", "grey": False}])
def test_a_mirrored_lap_is_a_lap_on_a_mirrored_road(options, seeing):
    def sees(sign):
        turns = {"slip": 4 * sign, "turn_rate": sign, "steering": 0.2 * sign}
        (instruments, stack), _ = seeing(
            state(bend=50 * sign, speed=20, **turns), **options
        ).reset()
        return instruments, stack.astype(np.float32), np.float32([0.3 * sign, 0.6])

    single, other = sees(1.0), sees(-1.0)
    batch = tuple(torch.from_numpy(np.stack(both)) for both in zip(single, other, strict=True))
    mirrored = MirroredLaps(seed=0)
    obs, act, _, next_obs, *_ = mirrored(batch, batch[2], 1.0, batch, False, False)
    # one of them, whose image is like the other
    assert sum(map(torch.equal, act, batch[2])) == 1
    for images in (obs, next_obs):
        assert torch.equal(images[2], act)
        assert torch.equal(*images[0])
        assert torch.equal(*images[2])
        # not exactly: the car is half a pixel off the frame's middle
        off, between = images[1].diff(dim=0), batch[1].diff(dim=0)
        assert off.abs().mean() < 0.1 * between.abs().mean()
    assert mirrored(single, single[-1], 1.0, single, False, False)[0] is single


def test_a_mirrored_number_is_the_row_that_steers_the_other_way():
    experiment = load_experiment(shipped()["racing_iqn"])
    rows = experiment.env.keywords["inputs"]
    act = torch.arange(len(rows)).repeat(20)
    obs = torch.ones(len(act), 4), torch.zeros(len(act), 2, 19), act
    mirrored = fitted(experiment.memory, experiment.env).keywords["sample_preprocessor"]
    (instruments, _, held), images, *_ = mirrored(obs, act, 1.0, obs, False, False)
    assert torch.equal(held, images)
    for number, image, sign in zip(act, images, instruments[:, 1].tolist(), strict=True):
        steering, pedal = rows[number]
        assert rows[image] == [sign * steering, pedal]
    with one_line("give MirroredLaps the environment's `inputs`"):
        MirroredLaps()(obs, act, 1.0, obs, False, False)


UNEVEN = [[0.0, 1.0], [0.3, 1.0]]


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (RacingEnv, {"observation": "radar"}, "expected lidar or image"),
        (RacingEnv, {"track": 7}, "no demonstration of track 7"),
        (RacingEnv, {"trajectory": "nowhere.npz"}, "no trajectory at nowhere.npz"),
        (RacingEnv, {"trajectory": "in_3d.npz"}, "have 3 coordinates, this environment's 2"),
        (MirroredLaps, {"inputs": UNEVEN}, r"row 1 .* has no mirror image: add \[-0\.3, 1\.0\]"),
    ],
)
def test_a_mistake_in_an_argument_is_one_line(cls, options, message, tmp_path, monkeypatch):
    pytest.importorskip("Box2D")
    monkeypatch.chdir(tmp_path)
    save_trajectory("in_3d.npz", np.ones((5, 3)))
    with one_line(message):
        cls(**options)


# -- who drives ------------------------------------------------------------------------------------


def test_a_lap_goes_from_the_start_until_the_car_is_back(seeing):
    way = [2.0, 51.0, 53.0, 9.0, 8.0]  # from its start 0, 49, 51, 7 and 6
    lap = seeing(state(2.0), *map(state, way), trajectory="", track=7)
    lap.reset()
    _, rewards, ends, infos = zip(*(lap.get_obs_rew_terminated_info() for _ in way), strict=True)
    assert (rewards, ends) == ((0.0,) * 5, (False, False, False, False, True))
    assert [info["position"][0] for info in infos] == way


@pytest.mark.long
def test_the_script_drives_a_lap_that_the_reward_accepts():
    pytest.importorskip("Box2D")
    rollouts, script = [], RacingEnv.lap_drivers["script"]
    how = {"takeover": script, "takeover_in_tests": True, "on_rollout": rollouts.append}
    with alone(partial(RacingEnv, **RacingEnv.lap_arguments), RandomActor, **how) as worker:
        assert worker.run_episode().terminated
    reward = TrajectoryReward(demonstration(1), replace(REWARD, forward_limit=10))
    assert any(reward(position)[1] for position in rollouts[0].info["position"])
    assert reward.progress == 1.0
