from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_commands import Command
from kit import ports


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start a command; what is still alive after the test is ended."""
    commands: list[Command] = []

    def run(*arguments: str) -> Command:
        commands.append(Command(arguments, tmp_path))
        return commands[-1]

    yield run
    for command in commands:
        if command.process.poll() is None:
            alive = command.family()
            command.process.kill()
            for process in alive:
                process.kill()
            command.process.wait()


@pytest.fixture
def free_port() -> int:
    return ports.free_port()
