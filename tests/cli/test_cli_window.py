"""An environment is drawn while it acts, wherever there is something to draw on."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_commands import TINY

from tmrl_like.cli import window
from tmrl_like.cli.window import Window

CommandLine = Callable[..., int]
FILMED = ("--env=filmed.Filmed", "--env.step_s", "0.02", "--untrained")


@pytest.fixture(autouse=True)
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is always a display")
class TestWithoutADisplay:
    def test_there_is_one_line_that_names_what_makes_a_film(
        self, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command_line("test", TINY, *FILMED, "--window") == 2
        error = capsys.readouterr().err
        assert "there is no display to show it on; `tmrl-like test EXPERIMENT --video FILE` makes a film" in error

    def test_a_display_that_does_not_answer_ends_nothing(
        self, command_line: CommandLine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DISPLAY", ":977")
        assert command_line("test", TINY, *FILMED, "--window", "--episodes", "20") == 0
        out = capsys.readouterr().out
        assert out.count("no window can be shown: the display does not answer") == 1
        assert "episode 20:" in out


def test_a_window_that_the_user_closes_ends_the_episodes(
    command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "window.py"
    script.write_text("import sys\nsys.stdin.buffer.read(4 + 96 * 128 * 3)\n")

    def start(shown: Path, **streams: Any) -> "subprocess.Popen[bytes]":
        assert shown.is_file()
        return subprocess.Popen([sys.executable, str(script)], bufsize=0, **streams)

    monkeypatch.setenv("DISPLAY", ":977")
    monkeypatch.setattr(window, "start_script", start)
    assert command_line("test", TINY, *FILMED, "--window") == 0


def test_without_a_picture_there_is_one_line(
    command_line: CommandLine, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":977")
    assert command_line("test", TINY, "--untrained", "--window") == 2
    assert "there is nothing to draw: the environment's render() raised NotImplementedError" in capsys.readouterr().err


def test_a_screen_can_be_closed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":977")
    shown = Window(lambda: None)
    shown.close()
    shown.close()
