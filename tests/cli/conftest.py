import msgspec
import pytest
from cli_commands import Command, words
from kit import ports

from tmrl_like.config.settings import Settings
from tmrl_like.policies.policy_store import PolicyStore


@pytest.fixture
def start(tmp_path):
    """Start a command in a process of its own; what is still alive after the test is ended."""
    commands = []

    def run(*arguments, **how):
        commands.append(Command(words(*arguments), tmp_path, **how))
        return commands[-1]

    yield run
    for command in commands:
        command.kill()


@pytest.fixture
def typed(command_line, capsys):
    """Run a command in this process, which ends with `code`; returns what it printed, as `out` and
    `err`.
    """

    def run(*said, code=0):
        capsys.readouterr()
        ended_with = command_line(*words(*said))
        printed = capsys.readouterr()
        assert ended_with == code, printed
        return printed

    return run


@pytest.fixture
def refused(typed):
    """Run a command that cannot be; returns the one line that says why."""

    def run(*said, code=2):
        *before, last = typed(*said, code=code).err.splitlines()
        assert not [line for line in before if "Traceback" in line or "tmrl-like: error" in line], (
            before
        )
        assert last.startswith("tmrl-like: error: ")
        return last.removeprefix("tmrl-like: error: ")

    return run


@pytest.fixture
def free_port():
    return ports.free_port()


@pytest.fixture
def store():
    """The policies of the run tiny, versions 1 to 3; the third one reaches the goal."""
    from tiny import TinyActor, TinyEnv

    from tmrl_like.policies.policy_file import describe

    kept = PolicyStore(Settings(run_name="tiny").paths.policies)
    for version in (1, 2, 3):
        actor = TinyActor(TinyEnv.observation_space, TinyEnv.action_space)
        actor.pedal.data.fill_(float(version == 3))
        card = msgspec.structs.replace(
            describe(actor, run="tiny"), version=version, training_steps=10 * version
        )
        kept.add(actor.weights(), card)
    return kept
