"""What must stay true of my_task, whatever you change in it; run `python -m pytest`."""

from pathlib import Path

from tmrl_like.cli import main

EXPERIMENT = str(Path(__file__).with_name("my_task.yaml"))


def test_every_sample_is_rebuilt_exactly_and_can_be_trained_on():
    assert main(["check", EXPERIMENT, "--episodes", "1", "--delay-steps", "0"]) == 0
