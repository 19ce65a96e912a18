import sys
from pathlib import Path

import pytest
from cli_commands import TINY

from tmrl_like.cli import main

PRINT = ["trainer", TINY, "--print_config"]


@pytest.fixture(autouse=True)
def module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["serve", TINY], "COMMAND: there is no 'serve'; did you mean server?"),
        (["server"], "the following arguments are required: EXPERIMENT"),
        (["server", "no_such_file.yaml"], "no_such_file.yaml: there is no such file"),
        (["server", TINY, "--log-lvel", "debug"], "there is no option --log-lvel; did you mean --log-level?"),
        (["server", TINY, "--frost", "3"], "there is no option --frost; see tmrl-like server --help"),
        (["server", TINY, "--log-level", "inf"], "there is no 'inf'; did you mean info?"),
        (["server", TINY, "more"], "'more' is one argument too many"),
        (["server", TINY, "--server.prt", "3"], "command line: server.prt: there is no such key; did you mean port?"),
        (["server", TINY, "--sever.port", "3"], "sever: there is no such key; did you mean server?"),
        (["server", TINY, "--server.port"], "--server.port needs a value"),
        (["server", TINY, "--server.port", "x"], "server.port: expected a whole number, got 'x'"),
        (["server", TINY, "--server.port", "-1"], "server.port is -1; expected 0 to 65535"),
        (["run", TINY, "--workers", "0"], "0 is not 1 or more"),
        (["run", TINY, "--minutes", "0"], "trainer.max_minutes is 0"),
        (["test", TINY, "--episodes", "0"], "0 is not 1 or more"),
        (["test", TINY, "--policy", "a", "--untrained"], "not allowed with argument"),
        (
            ["trainer", TINY, "--print_config", "--agent", "tiny.TinyAgnt"],
            "tiny has no TinyAgnt; did you mean TinyAgent",
        ),
        (
            ["trainer", TINY, "--print_config", "--agent.gian", "1"],
            "TinyAgent has no such argument; did you mean gain?",
        ),
        (["trainer", TINY, "--print_config", "--agent.gain", "x"], "agent.init_args.gain: expected a number, got 'x'"),
        (["trainer", TINY, "--print_config", "--env", "tinny.Env"], "there is no module 'tinny'"),
        (["keys", "invit"], "there is no 'invit'; did you mean invite?"),
        (["keys", "list", "--server.port", "3"], "`keys` reads no experiment"),
        (["keys", "join", "abc"], "expected the line that `tmrl-like keys invite` printed"),
        (["keys", "revoke", "nobody"], "no key is named 'nobody'"),
        (["keys", "invite", "../x"], "'../x' is not a name for a key"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tmrl-like: error: ")
    assert problem in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("broken", ["run_name: [", "a: 1\n  b: 2", "run_name: x\nrun_name: y"])
def test_a_syntax_error_names_file_and_line(broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(broken)
    assert main(["server", str(file)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"tmrl-like: error: {file}:")
    assert "is not valid YAML" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "command", ["", "run", "server", "worker", "trainer", "test", "benchmark", "check", "keys", "engine"]
)
def test_every_command_helps(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: tmrl-like {command}".strip() in out
    if command not in ("", "keys", "engine"):
        assert "--trainer.epochs (a number; 10)\n        a checkpoint is written after each" in out


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tmrl_like ")


def test_the_configuration_is_printed_with_all_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", TINY, "--print_config", "--trainer.epochs", "7"]) == 0
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
    assert main(["keys", "join", line, "--keys_dir", there]) == 0
    assert capsys.readouterr().out == "this machine may connect as robot1 (worker, trainer)\n"
    assert main(["keys", "list", "--keys-dir", here]) == 0
    assert "robot1" in capsys.readouterr().out
    assert main(["keys", "revoke", "robot1", "--keys-dir", here]) == 0
    assert main(["keys", "list", "--keys-dir", here]) == 0
    assert "robot1                 " not in capsys.readouterr().out
