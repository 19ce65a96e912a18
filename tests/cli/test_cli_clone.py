"""From a recording to a policy that a training starts from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_commands import TINY

from tmrl_like import load_policy
from tmrl_like.policies.policy_file import read_policy

CommandLine = Callable[..., int]
HALF = """
class Half:
    is_program = True
    def __init__(self, action_space, default_action): pass
    def __call__(self, obs): return [0.5]
    def close(self): pass
"""


@pytest.fixture
def task(tmp_path: Path) -> str:
    """An experiment whose environment takes a while, so that a driver has taken over after the first steps."""
    text = Path(TINY).read_text().replace("tiny.TinyEnv", "{class_path: tiny.TinyEnv, init_args: {step_s: 0.02}}")
    text = text.replace("tiny.TinyActor", "tmrl_like.agents.SquashedGaussianActor")
    file = tmp_path / "task.yaml"
    file.write_text(text.replace("tiny.TinyAgent", "tmrl_like.agents.SACAgent"))
    return str(file)


def test_what_a_driver_showed_is_cloned_and_a_training_starts_from_it(
    task: str, tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str], free_port: int
) -> None:
    (tmp_path / "half.py").write_text(HALF)
    data, policy = tmp_path / "data", tmp_path / "half.safetensors"
    with_driver = ("--takeover", "half.Half")
    assert command_line("record", task, "--random", "--episodes", "8", "--out", str(data), *with_driver) == 0
    assert command_line("clone", task, str(data), "--out", str(policy), "--steps", "800", "--held-out", "0.25") == 0
    out = capsys.readouterr().out
    assert "of 6 episodes" in out
    assert "of 2 episodes were held out" in out
    learnt, held_out = (line.split()[-2:] for line in out.splitlines() if line.startswith("  "))
    assert float(learnt[1]) > float(learnt[0]) + 1.0
    assert float(held_out[1]) > float(held_out[0]) + 1.0
    card, _ = read_policy(policy)
    assert card is not None
    assert card.training_steps == 800
    act = load_policy(policy).act(np.zeros(2, np.float32))
    assert act.item() == pytest.approx(0.5, abs=0.1)
    assert command_line("test", task, "--policy", str(policy), "--episodes", "1") == 0
    where = ("--server.port", str(free_port), "--memory.dataset_path", str(data), "--offline")
    start = ("--trainer.init_policy", str(policy), "--trainer.steps", "5")
    assert command_line("trainer", task, *where, *start) == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["nowhere", "--out", "a.safetensors"], "there is no data set at nowhere"),
        (["DATA", "--out", "a.txt"], "--out is 'a.txt'; expected a name that ends in .safetensors"),
        (["DATA", "--out", "task.yaml/a.safetensors"], "cannot write the policy to"),
        (["DATA", "--out", "a.safetensors", "--held-out", "1"], "--held-out is 1"),
        (["DATA", "--out", "a.safetensors", "--actor", "tiny.TinyActor", "--agent", "tiny.TinyAgent"], "log_prob"),
        (["DATA"], "--out"),
    ],
)
def test_what_cannot_be_is_one_line(
    task: str,
    tmp_path: Path,
    command_line: CommandLine,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[Any],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_line("record", TINY, "--random", "--episodes", "2", "--out", "DATA") == 0
    capsys.readouterr()
    assert command_line("clone", task, *more, "--steps", "2") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not [*tmp_path.glob("*.safetensors")]


def test_a_single_episode_has_none_to_hold_out(
    task: str, tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(tmp_path / "data")
    assert command_line("record", TINY, "--random", "--episodes", "1", "--out", data) == 0
    assert command_line("clone", task, data, "--out", str(tmp_path / "a.safetensors")) == 2
    assert "expected 2 or more, one of them to be held out" in capsys.readouterr().err
