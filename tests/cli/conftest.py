from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_commands import Command


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
def command_line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Run a command in this process, and take back what it did to it."""
    import torch

    from tmrl_like.cli import main

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    root, threads = logging.getLogger(), torch.get_num_threads()
    handlers, level = list(root.handlers), root.level
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield lambda *arguments: main(arguments)
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    torch.set_num_threads(threads)
    for number, handler in signals.items():
        signal.signal(number, handler)


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
