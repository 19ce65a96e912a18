"""`tmrl-like benchmark`: percentiles."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_commands import TINY

CommandLine = Callable[..., int]
Output = pytest.CaptureFixture[str]
DRONE = str(Path(__file__).parents[2] / "config" / "drone.yaml")


def test_a_benchmark_shows_percentiles(command_line: CommandLine, capsys: Output) -> None:
    assert command_line("benchmark", TINY, "--steps", "50") == 0
    out = capsys.readouterr().out
    assert "50 steps, milliseconds" in out
    assert "it does not run in real time" in out


def test_a_key_of_the_environment_sets_the_rate(command_line: CommandLine, capsys: Output) -> None:
    assert command_line("benchmark", DRONE, "--steps", "5", "--env.time_step_duration", "0.0025") == 0
    assert "time-step asked for: 2.5 ms" in capsys.readouterr().out


@pytest.mark.parametrize("gone", ["--hz", "--plot"])
def test_an_option_of_earlier_versions_names_what_serves(gone: str, command_line: CommandLine, capsys: Output) -> None:
    assert command_line("benchmark", TINY, gone, "100") == 2
    assert f"there is no option {gone}; an earlier version had it: " in capsys.readouterr().err
