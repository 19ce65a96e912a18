"""Doom in real time. The engine is a separate process with its own clock."""

import time
from contextlib import closing

import numpy as np
import pytest
from kit.refusals import one_line

from tmrl_like.envs.doom.doom_env import TIC_S, VizDoomEnv, VizDoomInterface

pytest.importorskip("vizdoom")

STILL, LEFT, RIGHT = range(3)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Run tests in another folder: the engine makes a folder where it is started."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def doom():
    interface = VizDoomInterface(variables={"ANGLE": 360, "AMMO2": 30})
    interface.reset()
    yield interface
    interface.close()


def angle(doom):
    (frames, variables), _, terminated, _ = doom.get_obs_rew_terminated_info()
    assert not terminated
    return float(variables[0]), frames[-1]


def test_the_game_goes_on_while_nobody_steps_and_buttons_stay_down(doom, until):
    for action, turn in ((STILL, 0), (LEFT, 1), (RIGHT, -1)):
        doom.send_control(STILL)
        before, frame = angle(doom)
        tics, started = doom.game.get_episode_time(), time.monotonic()
        doom.send_control(action)
        until(lambda start=tics: angle(doom) and doom.game.get_episode_time() >= start + 10)
        after, seen = angle(doom)
        gone = doom.game.get_episode_time() - tics
        assert gone < (time.monotonic() - started) / TIC_S + 4
        turned = (after - before + 180) % 360 - 180
        assert turned * turn > 20 or turned == turn == 0
        assert turn == 0 or np.abs(seen.astype(int) - frame).mean() > 1


def test_the_reward_is_the_scenario_s_since_the_last_observation_scaled():
    rewards, tics = [], []
    doom = VizDoomInterface("basic", [[], ["ATTACK"]], reward_scale=0.01)  # a tic costs 1
    with closing(doom):
        doom.reset()
        for _ in range(5):
            doom.send_control(STILL)
            time.sleep(2.5 * TIC_S)  # tics between buttons and frame count as well
            rewards.append(doom.get_obs_rew_terminated_info()[1])
            tics.append(doom.game.get_episode_time())
    assert np.diff(tics).min() >= 3
    assert rewards[1:] == pytest.approx(-0.01 * np.diff(tics))
    assert {rew.dtype for rew in rewards} == {np.dtype(np.float32)}


def test_the_stack_moves_on_with_the_last_step_too(doom):
    (before, _), terminated = doom.get_obs_rew_terminated_info()[0], False
    doom.game.send_game_command("kill")
    while not terminated:
        (frames, _), _, terminated, _ = doom.get_obs_rew_terminated_info()
        assert np.array_equal(frames[:-1], before[1:])
        before = frames
    assert np.array_equal(frames[-1], frames[-2])


def test_a_death_in_the_tic_of_the_buttons_costs_as_any_other(doom):
    doom.game.send_game_command("kill")
    while not doom.game.is_episode_finished():
        doom.send_control(STILL)
    assert doom.get_obs_rew_terminated_info()[1:3] == (-1.0, True)


@pytest.mark.long
@pytest.mark.parametrize("name", ["vizdoom", "vizdoom_iqn"])
def test_the_experiment_passes_its_check(name, command_line, capsys):
    options = "--episodes 2 --env.init_args.ep_max_length 20 --delay-steps 0"
    assert command_line("check", name, *options.split()) == 0
    assert "every transition is what the environment produced" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"scenario": "nothing"}, "no VizDoom scenario 'nothing': .* basic, "),
        ({"actions": [["FLY"]]}, "VizDoom has no Button 'FLY'; it has ATTACK"),
        (
            {"variables": {"HEALTH": 0}},
            r"variables is {'HEALTH': 0}; expected each with a largest value above 0",
        ),
        ({"actions": []}, r"actions is \[\]; expected a table"),
        ({"tics_per_step": 1}, "tics_per_step is 1; expected 2 or more"),
    ],
)
def test_what_doom_does_not_have_is_named(arguments, told):
    with one_line(told):
        VizDoomEnv(**arguments)
