"""`tmrl-like check --timing`: percentiles."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_commands import TINY

CommandLine = Callable[..., int]
Output = pytest.CaptureFixture[str]
DRONE = str(Path(__file__).parents[2] / "config" / "drone.yaml")


def test_the_time_of_steps_is_shown_in_percentiles(command_line: CommandLine, capsys: Output) -> None:
    assert command_line("check", TINY, "--timing", "50") == 0
    out = capsys.readouterr().out
    assert "50 steps, milliseconds" in out
    assert "it does not run in real time" in out


def test_a_key_of_the_environment_sets_the_rate(command_line: CommandLine, capsys: Output) -> None:
    assert command_line("check", DRONE, "--timing", "5", "--env.time_step_duration", "0.0025") == 0
    assert "time-step asked for: 2.5 ms" in capsys.readouterr().out


def test_an_option_of_earlier_versions_names_what_serves(command_line: CommandLine, capsys: Output) -> None:
    assert command_line("check", TINY, "--hz", "100") == 2
    assert "there is no option --hz; an earlier version had it: " in capsys.readouterr().err
