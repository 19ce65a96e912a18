"""What `tmrl-like check` says of time: percentiles of steps, and how often sensors give a value."""

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


def test_observations_that_repeat_the_value_of_a_sensor_are_noted(command_line: CommandLine, capsys: Output) -> None:
    assert command_line("check", TINY, "--env", "tiny.SlowCameraEnv", "--delay-steps", "0") == 0
    out = capsys.readouterr().out
    assert "sensor: the camera gives a value every " in out
    assert "observations in a row have the same value of the camera" in out


def test_an_option_of_earlier_versions_names_what_serves(command_line: CommandLine, capsys: Output) -> None:
    assert command_line("check", TINY, "--hz", "100") == 2
    assert "there is no option --hz; an earlier version had it: " in capsys.readouterr().err
