"""`tmrl-like policies`, and the policies that `test` drives."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_commands import TINY
from gymnasium.spaces import Box
from tiny import TinyActor, TinyEnv

from tmrl_like import load_policy
from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.config.settings import Settings
from tmrl_like.policies.policy_file import describe
from tmrl_like.policies.policy_store import PolicyStore

CommandLine = Callable[..., int]


def tiny_preprocessor(obs: Any) -> Any:
    return obs


@pytest.fixture
def store() -> PolicyStore:
    """Versions 1 to 3 of the run tiny; the third one reaches the goal."""
    kept = PolicyStore(Settings(run_name="tiny").paths.policies)
    for version in (1, 2, 3):
        actor = TinyActor(TinyEnv.observation_space, TinyEnv.action_space)
        actor.pedal.data.fill_(float(version == 3))
        card = msgspec.structs.replace(describe(actor, run="tiny"), version=version, training_steps=10 * version)
        kept.add(actor.weights(), card)
    return kept


def test_policies_are_listed_tagged_exported_and_pruned(
    command_line: CommandLine, store: PolicyStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store.add_return(2, 5.0)
    assert command_line("policies", "tag", "tiny@1", "first") == 0
    assert command_line("policies", "list", TINY) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = [row for row in rows if row and row[0] in ("1", "2", "3")]
    assert [row[:2] for row in shown[:2]] == [["1", "first"], ["2", "best"]]
    assert [row[-4:-1] for row in shown] == [["10", "-", "0"], ["20", "5", "1"], ["30", "-", "0"]]
    file = tmp_path / "policy.safetensors"
    assert command_line("policies", "export", f"{TINY}@best", str(file)) == 0
    assert load_policy(file, allow=("tiny",)).version == 2
    assert command_line("policies", "prune", str(store.folder.parent), "--untag", "first") == 0
    assert "removed 2 versions and 1 tags" in capsys.readouterr().out
    assert (store.versions(), store.tags()) == ([3], ["best"])


def test_without_a_run_the_policies_of_all_runs_are_listed(
    command_line: CommandLine, store: PolicyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    other = PolicyStore(Settings(run_name="other").paths.policies)
    other.folder.mkdir(parents=True)
    shutil.copy(store.path(2), other.path(2))
    Settings(run_name="without").paths.folder.mkdir()
    assert command_line("policies", "list") == 0
    words = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.split()]
    assert [word for word in words if word.isalnum()] == ["other", "version", "2", "tiny", "version", "1", "2", "3"]
    for run in (store, other):
        shutil.rmtree(run.folder)
    assert command_line("policies", "list") == 0
    assert "no policies in " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "nobody"], "there is no experiment and no run nobody"),
        (["tag", "tiny@9", "good"], "there is no policy 9"),
        (["tag", "tiny@3", "12"], "the tag is '12'; expected a letter"),
        (["export", "tiny@bst", "f"], "there is no policy bst in"),
        (["export", "tiny@3", "f.onnx"], "the file is 'f.onnx'; expected a name that ends in .safetensors"),
        (["export", "tiny@3", "f.safetensors", "--onnx"], "expected a name that ends in .onnx"),
        (["prune", "tiny", "--untag", "good"], "--untag good: there is no such tag"),
        (["prune", "tiny", "--keep", "0"], "--keep is 0; expected 1 or more"),
        (["lst", "tiny"], "there is no 'lst'; did you mean list?"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], message: str, command_line: CommandLine, store: PolicyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line("policies", *words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_test_drives_a_version_a_tag_another_runs_policy_or_a_file(
    command_line: CommandLine, store: PolicyStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store.tag("3", "good")
    file = shutil.copy(store.path(3), tmp_path / "copied")
    for policy in ("3", "good", "newest", f"{store.folder}@good", str(file)):
        assert command_line("test", TINY, "--episodes", "1", "--policy", policy) == 0
        assert "100%" in capsys.readouterr().out
    assert command_line("test", TINY, "--episodes", "1", "--policy", "tiny@1") == 0
    assert "100%" not in capsys.readouterr().out
    assert command_line("test", TINY, "--policy", "gone") == 2
    err = capsys.readouterr().err
    assert "--policy gone: there is no policy gone in" in err
    assert "`tmrl-like policies export` writes a file" in err


def test_a_policy_is_exported_as_onnx_and_what_is_not_in_it_is_said(
    command_line: CommandLine, store: PolicyStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "policy.onnx"
    assert command_line("policies", "export", "tiny@3", str(file), "--onnx", "--allow", "tiny") == 2
    assert "a TinyActor cannot be written as ONNX: give it a method best_actions(obs)" in capsys.readouterr().err
    actor = SquashedGaussianActor(Box(-1.0, 1.0, (4, 1)), Box(-1.0, 1.0, (2,)), hidden_sizes=(8,))
    store.add(actor.weights(), msgspec.structs.replace(describe(actor, tiny_preprocessor), version=4))
    assert command_line("policies", "export", "tiny", str(file), "--onnx", "--allow", __name__) == 0
    assert "as ONNX; its input is what test_cli_policies.tiny_preprocessor makes of" in capsys.readouterr().out
    (given,) = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).get_inputs()
    assert (given.name, given.shape) == ("observation", ["N", 4, 1])
