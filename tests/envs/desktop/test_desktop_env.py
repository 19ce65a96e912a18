"""A game in its own window on a real screen: keys steer it, and pictures are taken from the
screen.
"""

import contextlib
import math
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from kit.clocks import LoopTime
from kit.my_game import write_my_game
from kit.pythons import python
from kit.refusals import one_line
from playing import TITLE, SquareGame, command_of, process_of

from tmrl_like import load_experiment
from tmrl_like.base.functional import partial
from tmrl_like.envs.desktop.desktop_env import DesktopGameEnv
from tmrl_like.envs.desktop.desktop_game import GameProcess
from tmrl_like.envs.desktop.desktop_screen import Region, Screen
from tmrl_like.envs.desktop.game_window import find_window, focus, windows_now
from tmrl_like.envs.keyboards import Keyboard
from tmrl_like.errors import ConfigError, EnvironmentAwayError, EnvironmentFaultError

STEP_S = 0.02
PLACE = Region(100, 50, 320, 200)
LEFT, RIGHT = (np.float32([value]) for value in (-1.0, 1.0))


@pytest.fixture
def command():
    return command_of()


@pytest.fixture
def play(screen, command):
    """Return a function that makes the game's interface; close it at the end."""
    with contextlib.ExitStack() as until_end:
        yield lambda **options: until_end.enter_context(
            contextlib.closing(SquareGame(command, **options))
        )


@contextlib.contextmanager
def other_game(title):
    """Start another game with this title; yield its window."""
    with contextlib.closing(GameProcess(command_of(title))) as game:
        game.start()
        with contextlib.closing(find_window(title, within_s=20)) as window:
            yield window


@pytest.fixture
def env(screen, command):
    env = DesktopGameEnv(partial(SquareGame, command=command), time_step_duration=STEP_S)
    yield env
    env.close()


def square_in(obs):
    """Return the square's position in the newest picture, 0 (left) to 1 (right). Its grey is 76,
    the background's 7.
    """
    columns = np.nonzero((obs[0][-1] > 60).sum(axis=0) > 5)[0]
    return float(columns.mean() / obs[0].shape[-1])


def test_keys_steer_and_the_picture_shows_it(env, screen):
    obs, _ = env.reset()
    assert square_in(obs) == pytest.approx(0.5, abs=0.05)
    truncated = terminated = False
    while square_in(obs) > 0.4 and not truncated:
        obs, left_rew, _, truncated, _ = env.step(LEFT)
    assert len({picture.tobytes() for picture in obs[0]}) > 1
    while not (terminated or truncated):
        obs, rew, terminated, truncated, _ = env.step(RIGHT)
    assert left_rew < rew == 1.0
    assert square_in(obs) > 0.85
    assert keys_down() == 0
    assert square_in(env.reset()[0]) == pytest.approx(0.5, abs=0.05)  # the restart key works
    env.step(RIGHT)
    env.step(RIGHT)  # the first action takes effect now
    assert keys_down() == 1
    env.close()
    assert keys_down() == 0


@pytest.mark.parametrize(
    ("sent", "options", "told"),
    [
        (signal.SIGKILL, {}, "ended with exit code -9"),
        (
            signal.SIGSTOP,
            {"frozen_after_s": math.inf},
            "the game's telemetry at .* has been silent for",
        ),
        (
            signal.SIGSTOP,
            {"telemetry": None},
            "the game hangs: its picture has not changed for 1 s",
        ),
    ],
)
def test_a_game_that_ends_or_hangs_is_a_fault_that_lets_go_of_all_keys(
    play, command, sent, options, told
):
    interface = play(**options)
    interface.reset()
    interface.send_control(RIGHT)
    process_of(command).send_signal(sent)
    with pytest.raises(EnvironmentFaultError, match=told):
        while True:
            interface.get_obs_rew_terminated_info()
    assert keys_down() == 0


def test_a_picture_that_stood_still_between_two_episodes_is_no_hang_where_a_restart_looks_at_it(
    play, monkeypatch
):
    time = LoopTime()
    monkeypatch.setattr("tmrl_like.envs.desktop.desktop_game.time", time)
    monkeypatch.setattr(Screen, "grab", lambda *_: np.zeros((200, 320, 3), np.uint8))
    interface = play(telemetry=None)
    monkeypatch.setattr(interface, "begin_episode", interface.look)
    for _ in range(2):
        interface.reset()
        time.now += 60.0
    with pytest.raises(EnvironmentFaultError, match="the game hangs"):
        interface.get_obs_rew_terminated_info()


def test_without_the_focus_no_key_is_pressed_and_nothing_else_steers(play, monkeypatch):
    interface = play()
    interface.reset()
    interface.send_control(RIGHT)
    assert keys_down() == 1
    with other_game("Other") as window:
        focus(window)
    monkeypatch.setattr(Keyboard, "tap", lambda _, key: pytest.fail(f"pressed {key}"))
    for steer, by in ((interface.tap, "r"), (interface.send_control, RIGHT)):
        with pytest.raises(EnvironmentFaultError, match="lost the focus"):
            steer(by)
    assert keys_down() == 0


def test_each_reset_puts_the_window_at_its_place_where_it_is_seen_until_it_is_gone(
    play, command, until
):
    interface = play(place=PLACE)
    interface.reset()
    with contextlib.closing(find_window(TITLE)) as window:
        for _ in range(2):
            assert window.region() == PLACE
            window.place(Region(1200, 700, 300, 300))
            with pytest.raises(EnvironmentFaultError, match="cannot be grabbed at"):
                interface.look()
            interface.reset()
        until(lambda: interface.look()[0][-5, -5].tolist() == [0, 0, 60])  # RGB
        assert interface.render().shape == (200, 320, 3)
        process_of(command).kill()
        until(lambda: TITLE not in window.titles().values())
        for call in (window.region, window.has_focus, lambda: focus(window)):
            with pytest.raises(EnvironmentAwayError, match="'Square Game' is gone"):
                call()


def test_a_window_that_gets_no_focus_is_tried_again_until_a_person_gives_it(play):
    before, interface = windows_now(), play()
    interface.reset()
    with open_screen() as display:
        (window,) = windows_now() - before
        display.create_resource_object("window", window).unmap()
        display.sync()
    with pytest.raises(EnvironmentAwayError, match=r"the focus within 2 s: click into it"):
        interface.reset()


@pytest.mark.parametrize(
    ("name", "kind", "title"),
    [("WM_NAME", "STRING", "Rennspiel ü"), ("_NET_WM_NAME", "UTF8_STRING", "Rennspiel \ufffd")],
)
def test_a_window_is_found_by_a_title_in_the_older_encoding(screen, name, kind, title):
    with open_screen() as display:
        window = display.screen().root.create_window(0, 0, 50, 50, 0, 24)
        properties = ("_NET_WM_NAME", "UTF8_STRING", b""), (name, kind, b"Rennspiel \xfc")
        for atom, type_, value in properties:
            window.change_property(display.get_atom(atom), display.get_atom(type_), 8, value)
        window.map()
        display.sync()
        with contextlib.closing(find_window("rennspiel")) as found:
            assert found.titles()[window.id] == title


def test_keys_are_held_and_released_by_name(screen):
    with contextlib.closing(Keyboard()) as keyboard:
        for keys, down in ((["w", "space"], 2), (["w"], 1)):
            keyboard.hold(keys)
            assert keys_down() == down
        keyboard.tap("enter", 0.0)
        assert keys_down() == 1
        with pytest.raises(ConfigError, match="there is no key 'strg'"):
            keyboard.hold(["strg"])
    keyboard.close()
    assert keys_down() == 0


@pytest.mark.parametrize("place", [(-1, 0, 9, 9), (0, -60, 9, 9), (792, 0, 9, 9), (0, 592, 9, 9)])
def test_a_part_beside_the_screen_is_a_fault_even_where_it_is_read_as_black(place, monkeypatch):
    black = SimpleNamespace(bgra=bytes(4 * 9 * 9), width=9, height=9)
    screen = {"left": 0, "top": -50, "width": 800, "height": 650}
    grabber = SimpleNamespace(monitors=[screen], grab=lambda region: black)
    monkeypatch.setattr("mss.MSS", lambda: grabber)
    monkeypatch.setenv("DISPLAY", ":0")
    assert Screen().grab(Region(791, -50, 9, 9)).shape == (9, 9, 3)
    with pytest.raises(EnvironmentFaultError, match="is all of the window on it"):
        Screen().grab(Region(*place))


def test_a_screen_that_goes_away_is_a_fault_and_the_game_is_ended(mortal_screen, command):
    interface = SquareGame(command, telemetry=None)
    interface.reset()
    interface.send_control(RIGHT)
    game = process_of(command)
    game.suspend()  # so that it does not end by itself
    mortal_screen.kill()
    mortal_screen.wait()
    with pytest.raises(EnvironmentFaultError, match=r"cannot be grabbed|is gone"):
        interface.get_obs_rew_terminated_info()
    interface.close()
    assert not game.is_running()


def test_a_game_that_ends_while_it_starts_is_not_waited_for(screen):
    with pytest.raises(EnvironmentFaultError, match="ended with exit code 3"):
        SquareGame([sys.executable, "-c", "raise SystemExit(3)", "1"]).reset()


def test_a_game_is_played_in_its_own_window_where_another_has_the_same_title(env):
    with other_game(TITLE) as theirs:
        env.reset()
        for _ in range(10):
            env.step(LEFT)  # the right end would end the episode
        assert keys_down() == 1
        assert not theirs.has_focus()
        with pytest.raises(EnvironmentAwayError, match="there before the game"):
            find_window(TITLE, others=windows_now())
        with pytest.raises(EnvironmentAwayError, match=r"no window with 'Nothing' in its title"):
            find_window("Nothing")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axes": [["left"]]}, "axes is .*; expected two keys"),
        ({"place": (0, 0, 100)}, "place is .*; expected left, top, width, height"),
    ],
)
def test_arguments_that_make_no_sense_are_one_line(options, message):
    with one_line(message):
        DesktopGameEnv(partial(SquareGame, command=["game", "1"], **options))


HOLD = """
import os
import Xlib.display
from tmrl_like.envs.keyboards import Keyboard
keyboard = Keyboard()
keyboard.hold(["left", "right"])
print(sum(map(int.bit_count, Xlib.display.Display().query_keymap())))
"""


def test_a_process_that_ends_without_closing_leaves_no_key_down(screen):
    out, _ = python("-c", HOLD)
    assert out == "2\n"
    assert keys_down() == 0


def test_a_key_that_a_killed_process_left_down_is_released_by_the_next(play):
    python("-c", HOLD + "os._exit(0)")
    assert keys_down() == 2
    play().reset()
    assert keys_down() == 0


@pytest.mark.long
def test_the_game_of_the_guide_is_played(screen, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    experiment = load_experiment(write_my_game(tmp_path), parts=("env",))
    with contextlib.closing(experiment.env()) as env:
        env.reset()
        rewards = [env.step(np.float32([0.0, 1.0]))[1] for _ in range(100)]
        assert max(rewards) > rewards[0] + 0.1  # the car drives


def open_screen():
    from Xlib.display import Display

    return contextlib.closing(Display())


def keys_down():
    with open_screen() as display:
        return sum(map(int.bit_count, display.query_keymap()))


def test_a_game_has_the_variables_that_it_is_given_beside_ours():
    code = "import os; raise SystemExit(3 if os.environ['A'] and os.environ['PATH'] else 4)"
    with contextlib.closing(GameProcess([sys.executable, "-c", code], {"A": "1"})) as game:
        game.start()
        assert game.exit_code(within_s=60) == 3
