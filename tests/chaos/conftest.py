import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from chaos_rig import Rig

SEED_VARIABLE = "TMRL_LIKE_CHAOS_SEED"
FIGURES: list[tuple[str, str]] = []


@pytest.fixture
def seed() -> int:
    """Of everything that a test draws; shown with a failure."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"to run it again: {SEED_VARIABLE}={seed}")
    return seed


@pytest.fixture
def rigs(tmp_path: Path) -> Iterator[Callable[[str], Rig]]:
    """Makes pipelines, each in a folder of its own."""
    with ExitStack() as stack:
        made: list[Rig] = []

        def make(transport: str) -> Rig:
            made.append(Rig(transport, tmp_path / f"rig{len(made)}", stack))
            return made[-1]

        yield make


@pytest.fixture
def figure(request: pytest.FixtureRequest, seed: int) -> Callable[[str], None]:
    """Keeps a line for the end of the run."""

    def keep(line: str) -> None:
        FIGURES.append((request.node.name, f"{line} (seed {seed})"))
        print(line)

    return keep


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FIGURES:
        terminalreporter.section("chaos")
        for name, line in FIGURES:
            terminalreporter.line(f"{name}: {line}")
