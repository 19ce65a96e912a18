"""SuperTux: what is read from its screen, and how its episodes begin and end, against a stand-in;
`long`: the game.
"""

import contextlib
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_like import load_experiment
from tmrl_like.errors import ConfigError

pytest.importorskip("cv2")
pytestmark = pytest.mark.filterwarnings("ignore:Time-step timed out")  # the machine may be busy

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "config"))

from supertux import SuperTux, is_dying, read_x  # noqa: E402
from supertux_stand_in import GROUND, PIT, START, write_position  # noqa: E402

EXPERIMENT = ROOT / "config" / "supertux.yaml"
STAND_IN = Path(__file__).with_name("supertux_stand_in.py")
STILL, RIGHT, RIGHT_AND_JUMP, LEFT = range(4)
EPISODES = 20
PROGRAM = shutil.which("supertux2", path=f"{os.environ.get('PATH', '')}:/usr/games")
needs_the_game = pytest.mark.skipif(
    PROGRAM is None, reason="needs SuperTux: sudo apt-get install --no-install-recommends supertux"
)


def background(brightness, noise):
    grey = np.random.default_rng(0).integers(-noise, noise + 1, (300, 400, 3)) + brightness
    return np.clip(grey, 0, 255).astype(np.uint8)


@given(
    x=st.integers(0, 9999),
    y=st.integers(0, 999),
    brightness=st.integers(0, 255),
    noise=st.integers(0, 40),
)
def test_the_place_on_the_screen_is_read_over_any_background(x, y, brightness, noise):
    frame = background(brightness, noise)
    write_position(frame, x, y)
    assert read_x(frame) == x


@given(brightness=st.integers(0, 255), noise=st.integers(0, 40))
def test_where_nothing_is_written_nothing_is_read(brightness, noise):
    assert read_x(background(brightness, noise)) is None


def test_tux_dies_when_no_snow_is_white_whatever_is_written():
    frame = background(200, 0)
    frame[200:202, 100:102] = 255
    assert not is_dying(frame)
    dark = (frame * 0.97).astype(np.uint8)
    write_position(dark, 2144, 337)
    assert is_dying(dark)


def test_one_step_is_worth_the_tiles_that_were_gained_and_what_cannot_be_read_nothing():
    game = SuperTux()
    frame = background(255, 0)
    assert game.judge(frame, ()) == (0.0, False, {"tiles": 0.0})
    write_position(frame, START + 64, GROUND)
    assert game.judge(frame, ()) == (pytest.approx(0.2), False, {"tiles": 2.0})
    write_position(frame, START + 32, GROUND)
    assert game.judge(frame, ()) == (pytest.approx(-0.1), False, {"tiles": 1.0})


@pytest.mark.parametrize(
    ("x", "snow", "is_over"), [(8900, 255, False), (8901, 255, True), (500, 240, True)]
)
def test_an_episode_ends_at_the_level_s_end_and_when_tux_dies(x, snow, is_over):
    frame = background(snow, 0)
    write_position(frame, x, GROUND)
    assert SuperTux().judge(frame, ())[1] is is_over


@pytest.fixture
def env(screen, tmp_path, monkeypatch):
    """The experiment's, with the stand-in on the PATH."""
    script = tmp_path / "supertux2"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with game_of_the_experiment() as env:
        yield env


def game_of_the_experiment():
    return contextlib.closing(load_experiment(EXPERIMENT, parts=("env",)).env())


def steps_until_the_end(env, action):
    """Return, whether it terminated, and the last info."""
    total, over = 0.0, False
    while not over:
        _, reward, terminated, truncated, info = env.step(action)
        total, over = total + reward, terminated or truncated
    return total, terminated, info


def test_each_episode_begins_at_the_level_s_beginning(env):
    obs, _ = env.reset()  # out of the title
    assert env.observation_space.contains(obs)
    total, terminated, info = steps_until_the_end(env, RIGHT)
    assert terminated
    assert PIT <= START + 32 * info["tiles"] < PIT + 20
    assert total == pytest.approx(0.1 * info["tiles"])
    env.reset()  # out of a fall
    for _ in range(6):
        *_, info = env.step(RIGHT)
    assert 0 < info["tiles"] < 3
    env.reset()  # out of a level
    *_, info = env.step(STILL)
    assert info["tiles"] == 0


def test_a_game_that_is_not_installed_is_named(screen, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"the game cannot be started with .*supertux2"):
        SuperTux().reset()


@needs_the_game
@pytest.mark.long
def test_the_game_passes_its_check(screen, command_line, capsys):
    assert command_line("check", str(EXPERIMENT), "--episodes", "2", "--delay-steps", "0") == 0
    assert "every transition is what the environment produced" in capsys.readouterr().out


@needs_the_game
@pytest.mark.long
def test_tux_runs_to_the_first_snowball_dies_and_begins_again(screen):
    with game_of_the_experiment() as env:
        for _ in range(2):
            env.reset()
            total, terminated, info = steps_until_the_end(env, RIGHT)
            assert terminated
            assert info["tiles"] == pytest.approx(23.3, abs=3)
            assert total == pytest.approx(0.1 * info["tiles"])


def return_by_chance(env, rng):
    """Of an episode of inputs drawn from the table, each as likely as any other."""
    env.reset()
    total, is_over = 0.0, False
    while not is_over:
        _, reward, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
        total, is_over = total + reward, terminated or truncated
    return total


@needs_the_game
@pytest.mark.learn
@pytest.mark.timeout(3000)
def test_tux_comes_further_than_by_chance_after_the_training_that_ships(
    screen,
    command_line,
    capsys,
    figure,
):
    rng = np.random.default_rng(0)
    with game_of_the_experiment() as env:
        by_chance = [return_by_chance(env, rng) for _ in range(EPISODES)]
    assert command_line("run", str(EXPERIMENT), "--seed", "0") == 0
    capsys.readouterr()
    assert command_line("test", str(EXPERIMENT), "--episodes", str(EPISODES)) == 0
    learnt = [
        float(value)
        for value in re.findall(r"^episode \d+: return (\S+) in", capsys.readouterr().out, re.M)
    ]
    assert len(learnt) == EPISODES
    told = [
        f"{np.mean(returns):.1f} ± {np.std(returns, ddof=1):.1f}" for returns in (learnt, by_chance)
    ]
    figure(f"return {told[0]}, by chance {told[1]}")
    standard_error = np.sqrt((np.var(learnt, ddof=1) + np.var(by_chance, ddof=1)) / EPISODES)
    assert np.mean(learnt) - np.mean(by_chance) > 3 * standard_error
