import itertools

import msgspec
import pytest
from cli_commands import PORT, Command, words
from kit import ports

from tmrl_like.config.settings import Settings
from tmrl_like.policies.policy_store import PolicyStore
from tmrl_like.server.server import Server


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a command as a separate process; kill what is alive after the
    test.
    """
    commands = []

    def run(*arguments, **how):
        commands.append(Command(words(*arguments), tmp_path, **how))
        return commands[-1]

    yield run
    for command in commands:
        command.kill()


@pytest.fixture
def typed(command_line, capsys):
    """Return a function that runs a command in this process, checks its exit code, and returns what
    it printed (`out`, `err`).
    """

    def run(*said, code=0):
        capsys.readouterr()
        ended_with = command_line(*words(*said))
        printed = capsys.readouterr()
        assert ended_with == code, printed
        return printed

    return run


@pytest.fixture
def out_of(typed):
    """Return a function that runs a command in this process, and returns its standard output."""
    return lambda *said, code=0: typed(*said, code=code).out


@pytest.fixture
def refused(typed):
    """Return a function that runs an impossible command, and returns the line that says why."""

    def run(*said, code=2):
        *before, last = typed(*said, code=code).err.splitlines()
        assert not [line for line in before if "Traceback" in line or "tmrl-like: error" in line], (
            before
        )
        assert last.startswith("tmrl-like: error: ")
        return last.removeprefix("tmrl-like: error: ")

    return run


@pytest.fixture
def fail_in_step(monkeypatch):
    """Return a function that lets the environment fail in one of its steps, counted from 1."""
    from tiny import TinyEnv

    def fail(number):
        take_step, steps = TinyEnv.step, itertools.count(1)

        def step(env, action):
            if next(steps) == number:
                raise OSError("the arm is gone")
            return take_step(env, action)

        monkeypatch.setattr(TinyEnv, "step", step)

    return fail


@pytest.fixture
def port_is_taken():
    with Server(PORT, host="127.0.0.1"):
        yield


@pytest.fixture
def free_port():
    return ports.free_port()


@pytest.fixture
def store():
    """The policy store of the run `tiny`, with versions 1 to 3; only version 3 reaches the goal."""
    from tiny import actor_that_presses

    from tmrl_like.policies.policy_file import describe

    kept = PolicyStore(Settings(run_name="tiny").paths.policies)
    for version in (1, 2, 3):
        actor = actor_that_presses(float(version == 3))
        card = msgspec.structs.replace(
            describe(actor, run="tiny"), version=version, training_steps=10 * version
        )
        kept.add(actor.weights(), card)
    return kept
