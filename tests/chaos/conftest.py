import os
import random
from contextlib import ExitStack

import pytest
from chaos_rig import Rig

SEED_VARIABLE = "TMRL_LIKE_CHAOS_SEED"


@pytest.fixture
def seed():
    """Return the seed of all that a test draws; a failure shows it."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"to run it again: {SEED_VARIABLE}={seed}")
    return seed


@pytest.fixture
def rigs(tmp_path):
    """Return a function that makes pipelines, each in its own folder."""
    with ExitStack() as stack:
        made = []

        def make(transport):
            made.append(Rig(transport, tmp_path / f"rig{len(made)}", stack))
            return made[-1]

        yield make


@pytest.fixture
def figure(figure, seed):
    """Return a function that records a line about what the test measured, with the seed."""
    return lambda line: figure(f"{line} (seed {seed})")
