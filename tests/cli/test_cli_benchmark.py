"""`tmrl-like benchmark`: percentiles, and with `--minutes` the machine's floor and histograms."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cli_commands import TINY

from tmrl_like.cli import benchmark
from tmrl_like.cli.histograms import draw_histogram
from tmrl_like.networking import RolloutWorker
from tmrl_like.worker.timing import StepTimes

CommandLine = Callable[..., int]
Output = pytest.CaptureFixture[str]
DRONE = str(Path(__file__).parents[2] / "config" / "drone.yaml")


def test_a_benchmark_shows_percentiles(command_line: CommandLine, capsys: Output) -> None:
    assert command_line("benchmark", TINY, "--steps", "50") == 0
    out = capsys.readouterr().out
    assert "50 steps, milliseconds" in out
    assert "it does not run in real time" in out


def test_a_rate_takes_the_place_of_the_environments_own(command_line: CommandLine, capsys: Output) -> None:
    assert command_line("benchmark", DRONE, "--steps", "5", "--hz", "400") == 0
    assert "time-step asked for: 2.5 ms" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "line"),
    [
        (("--hz", "100"), "--hz sets the environment's time_step_duration, and TinyEnv takes no such argument"),
        (("--minutes", "1"), "--minutes measures how a time-step is kept, and the environment has none: use --steps"),
    ],
)
def test_an_environment_without_a_time_step_cannot_be_measured_against_one(
    option: tuple[str, str], line: str, command_line: CommandLine, capsys: Output
) -> None:
    assert command_line("benchmark", TINY, *option) == 2
    assert capsys.readouterr().err == f"tmrl-like: error: {line}\n"


def test_minutes_show_worker_and_machine_side_by_side_and_draw_them(
    command_line: CommandLine, capsys: Output, own_home: Path
) -> None:
    pytest.importorskip("matplotlib")
    assert command_line("benchmark", DRONE, "--hz", "500", "--minutes", "0.002") == 0
    out = capsys.readouterr().out
    assert "measuring 60 steps of 2 ms and, in turns, as many of a bare loop" in out
    for name in ("period error", "step time without env.step"):
        assert f"{name}, worker" in out
        assert f"{name}, bare loop" in out
    assert "overruns (periods of 3.96 ms or more): worker " in out
    picture = own_home / ".tmrl_like" / "runs" / "drone" / "benchmark.png"
    assert f"picture: {picture}" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_numbers_are_shown_and_what_to_install(
    command_line: CommandLine, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert command_line("benchmark", DRONE, "--hz", "500", "--minutes", "0.001") == 0
    out, err = capsys.readouterr()
    assert "30 steps of 2 ms" in out
    assert "picture" not in out
    assert "pip install 'tmrl_like[plot]'" in err


@pytest.mark.parametrize("steps", [0, 3])
def test_ctrl_c_shows_what_there_is(
    steps: int, command_line: CommandLine, capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(_: RolloutWorker, *both: StepTimes) -> None:
        for times in both:
            for _step in range(steps):
                times.add(0.002, 0.0, 0.001)

    monkeypatch.setattr(benchmark, "Stopper", lambda *_: SimpleNamespace(requested=True))
    monkeypatch.setattr(RolloutWorker, "measure", measure)
    picture = tmp_path / "plots" / "picture.png"
    assert command_line("benchmark", DRONE, "--minutes", "1", "--plot", str(picture)) == 130
    assert ("3 steps of 50 ms, microseconds" in capsys.readouterr().out) == bool(steps)
    assert picture.exists() == bool(steps)


def test_bars_are_logarithmic_and_in_the_bins_that_hold_anything() -> None:
    lines = draw_histogram("period", np.array([1.5e-6] * 999 + [30e-6]), np.array([3e-6]))
    bins = [line[:18].strip() for line in lines[1:-1]]
    assert bins == ["1 µs to 2 µs", "2 µs to 5 µs", "5 µs to 10 µs", "10 µs to 20 µs", "20 µs to 50 µs"]
    assert [line.count("#") for line in lines[1:-1]] == [24, 2, 0, 0, 2]
    assert [line.split()[5:] for line in lines[1:3]] == [["999", "#" * 24, "0"], ["0", "1", "##"]]
