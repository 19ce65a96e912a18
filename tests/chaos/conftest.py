import os
import random
from contextlib import ExitStack

import pytest
from chaos_rig import Rig

SEED_VARIABLE = "TMRL_LIKE_CHAOS_SEED"


@pytest.fixture
def seed():
    """Of everything that a test draws; shown with a failure."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"to run it again: {SEED_VARIABLE}={seed}")
    return seed


@pytest.fixture
def rigs(tmp_path):
    """Makes pipelines, each in a folder of its own."""
    with ExitStack() as stack:
        made = []

        def make(transport):
            made.append(Rig(transport, tmp_path / f"rig{len(made)}", stack))
            return made[-1]

        yield make


@pytest.fixture
def figure(figure, seed):
    """Keeps a line for the end of the run, with the seed that leads to it."""
    return lambda line: figure(f"{line} (seed {seed})")
