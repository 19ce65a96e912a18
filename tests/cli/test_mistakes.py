"""Mistakes of new users. Each is reported in one line that says what is wrong and what to do, and
by an exit code.
"""

import errno
import io
import re
import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from cli_commands import TINY
from kit.failing import without_a_reader
from kit.pythons import python
from mistakes import MISTAKES
from tiny import actor_that_presses

from tmrl_like.cli.arguments import parsers
from tmrl_like.config.paths import keys_folder
from tmrl_like.config.settings import Settings
from tmrl_like.transport import KeyFolder
from tmrl_like.wire import messages as m


@pytest.fixture
def home_is_a_file(monkeypatch):
    """Make the data folder unwritable, also for root, who runs tests in containers and can write
    into any folder.
    """
    Path("file").touch()
    monkeypatch.setenv("TMRL_LIKE_HOME", "file/data")


@pytest.fixture
def disk_is_full(full_disk, monkeypatch):
    monkeypatch.setenv("TMRL_LIKE_HOME", "disk/data")
    KeyFolder(keys_folder()).server_keys()
    full_disk()


@pytest.fixture
def with_weights_of_another_network(typed):
    actor_that_presses(0.0, width=3).save(Settings(run_name="tiny").paths.trainer_model)
    typed("config TINY --actor.width 3")


@pytest.fixture
def with_a_run_of_another_network(typed):
    typed("run TINY --in-process --trainer.rounds 1 --trainer.steps 1 --actor.width 3")


@pytest.fixture
def key_is_damaged():
    KeyFolder(keys_folder()).server_keys()
    (keys_folder() / "peer.json").write_text("{")


@pytest.fixture
def key_is_of_another_server(port_is_taken, monkeypatch):
    monkeypatch.setenv("TMRL_LIKE_HOME", "other")


@pytest.fixture
def server_is_newer(port_is_taken, monkeypatch):
    monkeypatch.setattr(m, "WIRE_VERSION", m.WIRE_VERSION + 1)


@pytest.fixture
def init_without_cd(typed):
    typed("init my_arm --kind gym")


@pytest.fixture
def without_tlspyo(monkeypatch):
    for name in [name for name in sys.modules if "tlspyo" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tlspyo", None)


@pytest.fixture
def agent_diverges(monkeypatch):
    monkeypatch.setattr("tiny.TinyAgent.train", lambda *_: {"loss": float("nan")})


@pytest.fixture
def faults_are_soon_over(monkeypatch):
    monkeypatch.setattr("tmrl_like.envs.supervision.MAX_BACKOFF_S", 0.0)


@pytest.mark.parametrize(("prepared", "code", "words", "said"), MISTAKES)
def test_a_mistake_is_one_line_with_its_cause_and_an_exit_code(
    prepared, code, words, said, refused, request
):
    request.getfixturevalue(prepared)
    assert said in refused(words, code=code)


@pytest.mark.parametrize(
    "words",
    [
        "clone TINY data --out",
        "success-model data --out",
        "trainer TINY --encoder",
        "policies export tiny",
    ],
)
def test_a_file_that_exists_is_not_overwritten(words, refused, tmp_path):
    file = tmp_path / "kept.safetensors"
    file.write_bytes(b"of yesterday")
    assert f"is '{file}'; expected the name of a new file" in refused(words, file)
    assert file.read_bytes() == b"of yesterday"


def test_a_trainer_runs_with_wandb_where_a_key_says_so(typed, monkeypatch):
    run = Mock()
    monkeypatch.setattr("tmrl_like.trainer.trainer.Trainer.run_with_wandb", run)
    typed("trainer TINY --trainer.wandb true --trainer.wandb_project arms --server.port 1")
    assert run.call_args.kwargs.items() >= {"project": "arms", "run_id": "tiny"}.items()


@pytest.mark.parametrize("command", ["", *parsers()[1]])
def test_every_command_helps_on_a_screen_or_two(command, out_of):
    out = out_of(*command.split(), "--help")
    assert f"usage: tmrl-like {command}".strip() in out
    assert out.count("\n") <= 60
    if not command:  # the overview names all commands
        named = re.findall(r"^    ([a-z]\S*)(?:  |$)", out.partition("COMMAND")[2], re.M)
        assert named == [*parsers()[1]]


def test_the_version_is_printed(out_of):
    assert out_of("--version").startswith("tmrl_like ")


def test_keys_are_invited_listed_joined_and_revoked(typed, out_of, refused):
    invited = typed("keys invite robot1 --role both --keys-dir here")
    assert "keys join" in invited.err
    join = f"keys join {invited.out.strip()} --keys-dir"
    joined = typed(join, "there")
    assert joined.out == "this machine may connect as robot1 (worker, trainer)\n"
    assert out_of(join, "there") == joined.out
    other = out_of("keys invite arm --keys-dir another").strip()
    gone = "its key before, robot1 (worker, trainer), is gone"
    assert gone in out_of("keys join", other, "--keys-dir there")
    assert "robot1" in out_of("keys list --keys-dir here")
    listed = typed("keys list --keys-dir there")
    assert listed.out.startswith("this machine connects as arm; ")
    assert listed.err == ""
    assert "no keys in " in out_of("keys list --keys-dir nowhere")
    Path("file").touch()
    assert "cannot write keys to " in refused(join, "file/keys")
    typed("keys revoke robot1 --keys-dir here")
    assert "robot1                 " not in out_of("keys list --keys-dir here")
    typed("keys revoke local --keys-dir here")
    assert "nobody may connect" in out_of("keys list --keys-dir here")


def test_a_command_may_be_interrupted_while_it_is_loaded(typed, monkeypatch):
    monkeypatch.delattr("tmrl_like.cli.app")
    monkeypatch.delitem(sys.modules, "tmrl_like.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupted()])
    typed("runs", code=130)


@pytest.mark.parametrize("module", ["check", "clone", "learn_success", "record", "train"])
def test_numpy_is_not_loaded_by_torch_which_would_swallow_ctrl_c(module):
    code = f"import sys, tmrl_like.cli.{module}; print(*sys.modules)"
    loaded = python("-c", code)[0].split()  # in the order in which loading ended
    assert loaded.index("numpy") < loaded.index("torch._utils")


class Interrupted:
    """A finder of modules during which Ctrl-C is pressed."""

    def find_spec(self, *_):
        raise KeyboardInterrupt


def test_output_may_be_closed(command_line, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert command_line("run", "no_such_file.yaml") == 2
    with closing(sys.stdout), closing(sys.stderr):
        assert command_line("test", TINY, "--untrained", "--episodes", "1") == 0


def test_a_key_that_cannot_be_printed_is_revoked(refused, typed, out_of, monkeypatch):
    invite = "keys invite robot1 --keys-dir keys"
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "No space left on device")
        patch.setattr(sys, "stdout", Mock(**{"write.side_effect": full}))
        error = refused(invite)
    assert "cannot write the key to standard output: No space left on device" in error
    assert "robot1" not in out_of("keys list --keys-dir keys")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout := without_a_reader())
        assert "error" not in typed(invite, code=1).err  # as with each `tmrl-like … | head`
    with pytest.raises(BrokenPipeError):
        stdout.close()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)  # closed
        assert "standard output is closed, where the key would be printed" in refused(invite)
        sys.stdout.close()
    assert "robot1" not in out_of("keys list --keys-dir keys")
    typed(invite)


class Terminal:
    """A standard input at which somebody types."""

    def isatty(self):
        return True


def test_a_line_that_is_pasted_into_a_terminal_is_not_shown(typed, monkeypatch):
    line = KeyFolder(Path("here")).invite("robot1")
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", lambda _: line)
    joined = typed("keys join - --keys-dir there")
    assert joined.out == "this machine may connect as robot1 (worker)\n"


def end_of_input(_):
    raise EOFError


@pytest.mark.parametrize("stdin", [Terminal(), io.StringIO(), None], ids=["typed", "piped", "no"])
def test_without_a_line_there_is_nothing_to_join_by(stdin, refused, monkeypatch):
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr("getpass.getpass", end_of_input)
    assert "expected the line that `tmrl-like keys invite` printed" in refused("keys join -")
