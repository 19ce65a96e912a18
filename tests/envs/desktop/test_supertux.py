"""SuperTux: reading its screen and, in tests marked `long`, playing the game."""

import os
import re
import shutil
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from driving import drive_to_end
from hypothesis import given
from hypothesis import strategies as st

from tmrl_like import load_experiment
from tmrl_like.errors import ConfigError

pytest.importorskip("cv2")

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "config"))

from supertux import FIRST_DIGIT, GLYPHS, SPACE_PX, SuperTux, read_x  # noqa: E402

EXPERIMENT = ROOT / "config" / "supertux.yaml"
RIGHT = 1
EPISODES = 20
BY_CHANCE = 3.1  # the return of actions at random
START, GROUND = 96, 577  # in pixels of the level
PROGRAM = shutil.which("supertux2", path=f"{os.environ.get('PATH', '')}:/usr/games")
needs_the_game = pytest.mark.skipif(
    PROGRAM is None, reason="needs SuperTux: sudo apt-get install --no-install-recommends supertux"
)


def write_position(frame, x, y):
    """Write a position into a picture, uint8 [300, 400, 3], with dark outlines as the game does."""
    column, top = FIRST_DIGIT
    for char in f"{x} Y:{y}":
        glyph = GLYPHS.get(char, np.full((6, SPACE_PX), 40, np.uint8))
        height, width = glyph.shape
        frame[top : top + height, column : column + width] = glyph[..., None]
        column += width


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


def test_one_step_is_worth_the_tiles_that_were_gained_and_what_cannot_be_read_nothing():
    game, frame = SuperTux(), background(255, 0)
    assert game.judge(frame, ()) == (0.0, False, {"tiles": 0.0})
    for x, reward, tiles in ((START + 64, 0.2, 2.0), (START + 32, -0.1, 1.0)):
        write_position(frame, x, GROUND)
        assert game.judge(frame, ()) == (pytest.approx(reward), False, {"tiles": tiles})


@pytest.mark.parametrize(
    ("x", "snow", "is_over"), [(8900, 255, False), (8901, 255, True), (500, 240, True)]
)
def test_an_episode_ends_at_the_level_s_end_and_when_no_snow_is_white(x, snow, is_over):
    """Tux dies when the picture darkens, except for what is written."""
    frame = background(200, 0)
    frame[:80] = 255
    frame[200:202, 100:102] = snow
    write_position(frame, x, GROUND)
    assert SuperTux().judge(frame, ())[1] is is_over


def test_a_game_that_is_not_installed_is_named(screen, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"the game cannot be started with .*supertux2"):
        SuperTux().reset()


@needs_the_game
@pytest.mark.long
def test_tux_runs_to_the_first_snowball_dies_and_begins_again(screen):
    with closing(load_experiment(EXPERIMENT, parts=("env",)).env()) as env:
        for _ in range(2):
            env.reset()
            rewards, _, info = drive_to_end(env, RIGHT)
            assert info["tiles"] == pytest.approx(23.3, abs=3)
            assert sum(rewards) == pytest.approx(0.1 * info["tiles"])


@needs_the_game
@pytest.mark.learn
@pytest.mark.timeout(3000)
def test_tux_comes_further_than_by_chance_after_the_training_that_ships(
    screen, command_line, capsys, figure
):
    assert command_line("run", str(EXPERIMENT), "--seed", "0") == 0
    capsys.readouterr()
    assert command_line("test", str(EXPERIMENT), "--episodes", str(EPISODES)) == 0
    shown = capsys.readouterr().out
    returns = [*map(float, re.findall(r"^episode \d+: return (\S+) in", shown, re.M))]
    assert len(returns) == EPISODES
    figure(f"return {np.mean(returns):.1f} ± {np.std(returns, ddof=1):.1f}")
    assert np.mean(returns) > 2 * BY_CHANCE
