"""Drawing an environment during a test, in a window (if there is a display) and in a film."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tmrl_like.cli import window

FILMED = "--env=filmed.Filmed --env.step_s 0.02 --untrained"
elsewhere = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere there is always a display"
)


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)


@pytest.fixture
def dead_display(monkeypatch):
    """Set a DISPLAY that does not answer."""
    monkeypatch.setenv("DISPLAY", ":977")


@pytest.mark.parametrize(
    "how", [FILMED.replace("Filmed", w) for w in ("Filmed", "wrapped", "Growing")]
)
def test_the_first_test_episode_is_filmed(typed, how):
    import cv2

    rate = 30.0 if "Growing" in how else 10.0
    typed("test TINY", how, "--episodes 2 --video drive.mp4")
    video = cv2.VideoCapture("drive.mp4")
    pictures = []
    while (read := video.read())[0]:
        pictures.append(read[1])
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(rate)
    assert [p.shape for p in pictures] == [(384, 512, 3)] * 10  # enlarged pictures
    assert [p.mean() for p in pictures] == pytest.approx(20.0 * np.arange(1, 11), abs=6)


def test_an_environment_without_a_picture_is_one_line_and_no_file(dead_display, refused):
    for how in ("--video drive.mp4", "--window"):
        error = refused("test TINY --untrained", how)
        assert (
            "there is nothing to draw: the environment's render() raised NotImplementedError"
            in error
        )
    assert not Path("drive.mp4").exists()


@elsewhere
def test_without_a_display_there_is_one_line_that_names_what_makes_a_film(refused):
    error = refused("test TINY", FILMED, "--window")
    assert (
        "there is no display to show it on; `tmrl-like test EXPERIMENT --video FILE` makes a film"
        in error
    )


@elsewhere
def test_a_display_that_does_not_answer_ends_nothing(dead_display, out_of):
    out = out_of("test TINY", FILMED, "--window --episodes 20")
    assert out.count("no window can be shown: the display does not answer") == 1
    assert "episode 20:" in out


@pytest.fixture
def closed_window(dead_display, tmp_path, monkeypatch):
    """Let the user close the window after its first picture."""
    script = tmp_path / "window.py"
    script.write_text("import sys\nsys.stdin.buffer.read(4 + 96 * 128 * 3)\n")

    def start(shown, **streams):
        assert shown.is_file()
        return subprocess.Popen([sys.executable, str(script)], bufsize=0, **streams)

    monkeypatch.setattr(window, "start_script", start)


def test_a_window_that_the_user_closes_ends_the_episodes(closed_window, typed):
    typed("test TINY", FILMED, "--window")


def test_a_window_that_the_user_closes_ends_a_lap_without_a_file(closed_window, typed):
    lap = "record TINY --env filmed.ByKeys --lap keyboard --out way.npz"
    assert "Traceback" not in typed(lap, code=130).err
    assert not Path("way.npz").exists()
