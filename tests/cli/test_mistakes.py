"""Mistakes that a new user makes. Each is one line that says what is wrong and what to do, and an exit code."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_commands import TINY
from mistakes import MISTAKES, NOWHERE, Machine

from tmrl_like.cli import main
from tmrl_like.cli.arguments import parse
from tmrl_like.cli.prepare import prepare
from tmrl_like.transport import KeyFolder

CommandLine = Callable[..., int]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_its_cause_and_an_exit_code(
    name: str,
    command_line: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    mistake = MISTAKES[name]
    with contextlib.ExitStack() as until_end:
        mistake.prepare(Machine(tmp_path, monkeypatch, lambda: request.getfixturevalue("full_disk"), until_end))
        mistake.patch(monkeypatch)
        capsys.readouterr()
        assert command_line(*mistake.arguments) == mistake.code
    *before, last = capsys.readouterr().err.splitlines()
    assert last.startswith("tmrl-like: error: ")
    assert mistake.said in last
    assert [line for line in before if "Traceback" in line or "tmrl-like: error" in line] == [], "\n".join(before)


def test_a_trainer_runs_with_wandb_where_a_key_says_so(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(
        "tmrl_like.trainer.trainer.Trainer.run_with_wandb", lambda self, **options: calls.append(options)
    )
    project = ("--trainer.wandb_project", "arms")
    assert command_line("trainer", TINY, "--trainer.wandb", "true", *project, *NOWHERE) == 0
    assert [(options["project"], options["run_id"]) for options in calls] == [("arms", "tiny")]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (["run", TINY, "--minutes", "3"], "--minutes; an earlier version had it: use --trainer.max_minutes N"),
        (["run", "--minutes", "3", TINY], "--minutes; an earlier version had it: use --trainer.max_minutes N"),
        (["server", TINY, "--engine", "tls://a"], "--engine; an earlier version had it: use --server.engine NODES"),
        (["trainer", TINY, "--wandb"], "--wandb; an earlier version had it: use --trainer.wandb true"),
        (["run", TINY, "--on_trainer_rollout", "a.b"], "--on_trainer_rollout; an earlier version had it"),
        (["check", TINY, "--video", "x.mp4"], "--video; `test` has it"),
        (
            ["worker", TINY, "--print_config"],
            "--print_config; an earlier version had it: use `tmrl-like config EXPERIMENT`",
        ),
        (["run", TINY, "--log_level", "debug"], "--log_level; did you mean --log-level?"),
    ],
)
def test_an_option_that_is_elsewhere_now_is_named_with_its_place(
    typed: list[str], hint: str, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(*typed) == 2
    assert f"there is no option {hint}" in capsys.readouterr().err


@pytest.mark.usefixtures("command_line")
def test_a_worker_that_has_a_name_speaks_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    speaks_as = []
    monkeypatch.setattr("tmrl_like.cli.prepare.set_up_logging", lambda role, *_: speaks_as.append(role))
    for name in ((), ("--name", "worker-2")):
        prepare(parse(["worker", TINY, *name]), "worker", ("env",))
    assert speaks_as == ["worker", "worker-2"]


COMMANDS = (
    *("run", "server", "worker", "trainer", "config", "doctor", "check", "test", "record", "clone"),
    *("log", "runs", "policies", "page", "init", "keys"),
)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_helps_on_a_screen_or_two(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: tmrl-like {command}".strip() in out
    assert out.count("\n") <= 60


def test_a_newcomer_finds_sixteen_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = re.findall(r"^    ([a-z]\S*)  ", capsys.readouterr().out.partition("COMMAND")[2], re.M)
    assert listed == [*COMMANDS]


def test_all_keys_of_an_experiment_are_shown_with_type_default_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    assert "--trainer.epochs (a number; 10)\n        a checkpoint is written after each" in out
    assert "--agent.KEY VALUE\n" in out


@pytest.mark.parametrize(
    ("gone", "now"),
    [
        ("show", "tmrl-like test EXPERIMENT --window"),
        ("eval", "tmrl-like test RUN --interval"),
        ("benchmark", "tmrl-like check EXPERIMENT --timing 400"),
        ("record-reward", "tmrl-like record EXPERIMENT --lap script --out FILE"),
        ("plot", "tmrl-like runs RUN --plot"),
    ],
)
def test_a_command_of_an_earlier_version_answers_with_the_one_that_serves(
    gone: str, now: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([gone, TINY]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tmrl-like: error: COMMAND: there is no {gone!r}; an earlier version had it: use `{now}`")


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tmrl_like ")


def test_the_configuration_is_printed_with_all_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", TINY, "--trainer.epochs", "7"]) == 0
    out = capsys.readouterr().out
    assert "epochs: 7" in out
    assert "gain: 0.02" in out


def test_keys_are_invited_listed_joined_and_revoked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    assert main(["keys", "invite", "robot1", "--role", "both", "--keys-dir", here]) == 0
    out, err = capsys.readouterr()
    assert "keys join" in err
    line = out.strip()
    assert main(["keys", "join", line, "--keys-dir", there]) == 0
    assert capsys.readouterr().out == "this machine may connect as robot1 (worker, trainer)\n"
    assert main(["keys", "list", "--keys-dir", here]) == 0
    assert "robot1" in capsys.readouterr().out
    assert main(["keys", "revoke", "robot1", "--keys-dir", here]) == 0
    assert main(["keys", "list", "--keys-dir", here]) == 0
    assert "robot1                 " not in capsys.readouterr().out


@pytest.mark.skipif(os.name != "posix", reason="elsewhere there are no such terminals")
def test_a_line_that_is_pasted_into_a_terminal_is_not_shown(tmp_path: Path) -> None:
    outside, inside = os.openpty()
    command = [sys.executable, "-m", "tmrl_like", "keys", "join", "-", "--keys-dir", str(tmp_path / "there")]
    pipes = {"stdin": inside, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    process = subprocess.Popen(command, **pipes)
    assert process.stderr is not None
    asked = b""
    while b"press Enter: " not in asked:
        asked += os.read(process.stderr.fileno(), 1000)
    os.write(outside, KeyFolder(tmp_path / "here").invite("robot1").encode() + b"\n")
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == (b"this machine may connect as robot1 (worker)\n", 0)
    os.set_blocking(outside, False)
    with contextlib.suppress(BlockingIOError):
        assert os.read(outside, 1000).strip() == b""
    os.close(inside)
    os.close(outside)
