"""An environment is drawn while it acts, wherever there is something to draw on; and written down step by step."""

import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_commands import TINY

from tmrl_like.cli import screen
from tmrl_like.cli.recording import Recording
from tmrl_like.cli.screen import Screen
from tmrl_like.rollouts import Rollout

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
        assert command_line("show", TINY, *FILMED) == 2
        error = capsys.readouterr().err
        assert "there is no display to show it on; `tmrl-like test EXPERIMENT --video FILE` makes a film" in error

    def test_a_display_that_does_not_answer_ends_nothing(
        self, command_line: CommandLine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DISPLAY", ":977")
        assert command_line("test", TINY, *FILMED, "--show", "--episodes", "20") == 0
        out = capsys.readouterr().out
        assert out.count("no window can be shown: the display does not answer") == 1
        assert "episode 20:" in out


def test_a_window_that_the_user_closes_ends_the_episodes(
    command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = tmp_path / "window.py"
    window.write_text("import sys\nsys.stdin.buffer.read(4 + 96 * 128 * 3)\n")

    def start(script: Path, **streams: Any) -> "subprocess.Popen[bytes]":
        assert script.is_file()
        return subprocess.Popen([sys.executable, str(window)], bufsize=0, **streams)

    monkeypatch.setenv("DISPLAY", ":977")
    monkeypatch.setattr(screen, "start_script", start)
    assert command_line("show", TINY, *FILMED) == 0


def test_without_a_picture_there_is_one_line(
    command_line: CommandLine, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":977")
    assert command_line("show", TINY, "--untrained") == 2
    assert "there is nothing to draw: the environment's render() raised NotImplementedError" in capsys.readouterr().err


STEPS = 5


def episode() -> Rollout:
    """With an observation of each form."""
    observations = (
        np.arange(STEPS + 1, dtype=np.float32)[:, None],
        {"camera": np.zeros((STEPS + 1, 4, 8, 9), np.uint8), "colour": np.zeros((STEPS + 1, 8, 9, 3), np.uint8)},
        np.zeros((STEPS + 1, 100), np.float32),
    )
    return Rollout(
        actions=np.ones((STEPS, 2), np.float32),
        rewards=np.arange(STEPS, dtype=np.float64),
        info={"progress": np.arange(STEPS)},
        policy_versions=np.full(STEPS, 7),
        sources=np.zeros(STEPS, np.int64),
        times_s=0.06 * np.arange(1, STEPS + 1),
        observations=observations,
        time_step_s=0.05,
    )


class StandIn(types.ModuleType):
    """Says what is sent to Rerun."""

    def __init__(self) -> None:
        super().__init__("rerun")
        self.columns: dict[str, tuple[list[Any], Any]] = {}
        self.rows: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
        self.Scalars = types.SimpleNamespace(columns=lambda scalars: scalars)
        self.TimeColumn = lambda name, sequence=None, duration=None: list(duration if sequence is None else sequence)
        self.Image, self.Tensor = lambda row: ("image", row.shape), lambda row: ("tensor", row.shape)

    def RecordingStream(self, name: str) -> Any:
        nothing = lambda *_, **__: None  # noqa: E731
        log = lambda place, row: self.rows.setdefault(place, []).append(row)  # noqa: E731
        return types.SimpleNamespace(save=nothing, set_time=nothing, flush=nothing, disconnect=nothing, log=log)

    def send_columns(self, place: str, indexes: Any, columns: Any, recording: Any) -> None:
        self.columns[place] = indexes, columns


def test_rerun_gets_each_step_of_each_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rerun = StandIn()
    monkeypatch.setitem(sys.modules, "rerun", rerun)
    with Recording(str(tmp_path / "x.rrd")) as recording:
        recording.add(episode())
        recording.add(episode())
    of_first = {name.removeprefix("episode_1/") for name in rerun.columns if name.startswith("episode_1/")}
    timing = {"timing/period_ms", "timing/late_by_ms"}
    assert of_first == {"observation/0", "action", "reward", "info/progress", "policy_version", "driver", *timing}
    (steps, times), rewards = rerun.columns["episode_2/reward"]
    assert (steps, rewards.ravel().tolist()) == ([1, 2, 3, 4, 5], [0, 1, 2, 3, 4])
    assert times == pytest.approx([0.06, 0.12, 0.18, 0.24, 0.3])
    assert rerun.columns["episode_1/observation/0"][0][0] == [0, 1, 2, 3, 4, 5]
    assert rerun.columns["episode_1/timing/late_by_ms"][1].ravel() == pytest.approx([10.0] * STEPS)
    assert rerun.rows["episode_1/observation/1/camera"] == [("image", (8, 9))] * (STEPS + 1)
    assert rerun.rows["episode_1/observation/1/colour"] == [("image", (8, 9, 3))] * (STEPS + 1)
    assert rerun.rows["episode_1/observation/2"] == [("tensor", (100,))] * (STEPS + 1)


def test_the_file_is_one_that_rerun_reads(tmp_path: Path, command_line: CommandLine) -> None:
    pytest.importorskip("rerun")
    file = tmp_path / "x.rrd"
    with Recording(str(file)) as recording:
        recording.add(episode())
    done = subprocess.run([sys.executable, "-m", "rerun", "rrd", "verify", str(file)], capture_output=True, text=True)
    assert "verified without error" in done.stdout + done.stderr
    assert command_line("test", TINY, *FILMED, "--episodes", "7", "--rerun", str(file)) == 0
    assert b"episode_7" in file.read_bytes()


def test_an_episode_that_makes_no_rollout_is_not_waited_for(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*steps: Any, **more: Any) -> Rollout:
        raise ValueError("no array of one form")

    monkeypatch.setitem(sys.modules, "rerun", StandIn())
    monkeypatch.setattr("tmrl_like.rollouts.hooks.rollout_of", none)
    monkeypatch.setattr("tmrl_like.cli.test._ROLLOUT_WITHIN_S", 0.01)
    assert command_line("test", TINY, *FILMED, "--episodes", "1", "--rerun", str(tmp_path / "x.rrd")) == 0
    assert "an episode makes no rollout" in capsys.readouterr().err


def test_a_recording_that_cannot_be_is_one_line(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    assert command_line("test", TINY, *FILMED, "--rerun", str(tmp_path / "x.rrd")) == 2
    assert "pip install 'tmrl_like[rerun]'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "rerun", StandIn())
    assert command_line("test", TINY, *FILMED, "--rerun", str(tmp_path / "x.rd")) == 2
    assert "ending in .rrd" in capsys.readouterr().err


def test_a_screen_can_be_closed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":977")
    shown = Screen(lambda: None)
    shown.close()
    shown.close()
