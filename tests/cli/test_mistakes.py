"""Mistakes of new users. Each is reported in one line that says what is wrong and what to do, and
by an exit code.
"""

import contextlib
import io
import re
import sys

import pytest
from cli_commands import TINY
from mistakes import MISTAKES, Machine

from tmrl_like.transport import KeyFolder

COMMANDS = (
    *("run", "server", "worker", "trainer", "config", "doctor", "check", "test", "record", "clone"),
    *("label", "success-model", "log", "runs", "policies", "signal", "page", "init", "keys"),
)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_its_cause_and_an_exit_code(
    name, refused, tmp_path, monkeypatch, request
):
    monkeypatch.chdir(tmp_path)
    mistake = MISTAKES[name]
    with contextlib.ExitStack() as until_end:
        mistake.prepare(Machine(tmp_path, monkeypatch, request, until_end))
        mistake.patch(monkeypatch)
        assert mistake.said in refused(*mistake.arguments, code=mistake.code)


def test_a_trainer_runs_with_wandb_where_a_key_says_so(typed, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "tmrl_like.trainer.trainer.Trainer.run_with_wandb",
        lambda self, **options: calls.append(options),
    )
    typed("trainer TINY --trainer.wandb true --trainer.wandb_project arms --server.port 1")
    assert [(options["project"], options["run_id"]) for options in calls] == [("arms", "tiny")]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_helps_on_a_screen_or_two(command, typed):
    out = typed(*command.split(), "--help").out
    assert f"usage: tmrl-like {command}".strip() in out
    assert out.count("\n") <= 60
    if not command:  # the overview names all commands
        assert re.findall(r"^    ([a-z]\S*)(?:  |$)", out.partition("COMMAND")[2], re.M) == [
            *COMMANDS
        ]


def test_version_configuration_and_the_meaning_of_every_key_are_printed(typed):
    assert typed("--version").out.startswith("tmrl_like ")
    out = typed("config TINY --trainer.epochs 7").out
    assert "epochs: 7" in out
    assert "gain: 0.02" in out
    keys = typed("config").out
    assert "--trainer.epochs (a number; 10)\n        number of epochs; a checkpoint" in keys
    assert "--agent.KEY VALUE\n" in keys


def test_keys_are_invited_listed_joined_and_revoked(typed, refused, tmp_path):
    here, there = ("--keys-dir", tmp_path / "here"), ("--keys-dir", tmp_path / "there")
    invited = typed("keys invite robot1 --role both", *here)
    assert "keys join" in invited.err
    joined = typed("keys join", invited.out.strip(), *there)
    assert joined.out == "this machine may connect as robot1 (worker, trainer)\n"
    assert typed("keys join", invited.out.strip(), *there).out == joined.out
    other = typed("keys invite arm", "--keys-dir", tmp_path / "another").out.strip()
    assert "its key for another server, robot1, is gone" in typed("keys join", other, *there).out
    assert "robot1" in typed("keys list", *here).out
    listed = typed("keys list", *there)
    assert listed.out.startswith("this machine connects as arm; ")
    assert listed.err == ""
    assert "no keys in " in typed("keys list", "--keys-dir", tmp_path / "nowhere").out
    (tmp_path / "file").touch()
    folder = ("--keys-dir", tmp_path / "file" / "keys")
    assert "cannot write keys to " in refused("keys join", invited.out.strip(), *folder)
    typed("keys revoke robot1", *here)
    assert "robot1                 " not in typed("keys list", *here).out
    typed("keys revoke local", *here)
    assert "nobody may connect" in typed("keys list", *here).out
    (tmp_path / "there" / "peer.json").write_text("{")
    assert "peer.json is damaged" in refused("keys list", *there)


def test_a_command_may_be_interrupted_while_it_is_loaded(typed, monkeypatch):
    monkeypatch.delattr("tmrl_like.cli.app")
    monkeypatch.delitem(sys.modules, "tmrl_like.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupted()])
    typed("runs", code=130)


class Interrupted:
    """A finder of modules during which Ctrl-C is pressed."""

    def find_spec(self, *_):
        raise KeyboardInterrupt


def test_output_may_be_closed(command_line, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert command_line("run", "no_such_file.yaml") == 2
    with contextlib.closing(sys.stdout), contextlib.closing(sys.stderr):
        assert command_line("test", TINY, "--untrained", "--episodes", "1") == 0


class Terminal:
    """A standard input at which somebody types."""

    def isatty(self):
        return True


def test_a_line_that_is_pasted_into_a_terminal_is_not_shown(typed, tmp_path, monkeypatch):
    line = KeyFolder(tmp_path / "here").invite("robot1")
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", lambda _: line)
    joined = typed("keys join - --keys-dir", tmp_path / "there")
    assert joined.out == "this machine may connect as robot1 (worker)\n"


def end_of_input(_):
    raise EOFError


@pytest.mark.parametrize("stdin", [Terminal(), io.StringIO(), None], ids=["typed", "piped", "no"])
def test_without_a_line_there_is_nothing_to_join_by(stdin, refused, monkeypatch):
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr("getpass.getpass", end_of_input)
    assert "expected the line that `tmrl-like keys invite` printed" in refused("keys join -")
