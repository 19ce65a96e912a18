"""The CPU time of a chain of filters and limits for a float32 action.

    python tests/benchmarks/action_chain.py [--repeats 200]

The limit converts the action to Python's numbers and back to an array.
"""

import time
from functools import partial

import numpy as np
from _harness import benchmark, in_turns
from kit.boxes import box

from tmrl_like.worker.action_chain import (
    AccelerationLimit,
    ActionChain,
    OneEuroFilter,
    RateLimit,
)

CHAINS = {
    "OneEuroFilter, RateLimit": [OneEuroFilter(2.0), RateLimit(4.0)],
    "OneEuroFilter, RateLimit, AccelerationLimit": [
        OneEuroFilter(2.0, 0.5),
        RateLimit(4.0),
        AccelerationLimit(20.0),
    ],
}


def us(call, actions):
    """Return the CPU time of a call in µs."""
    started_ns = time.thread_time_ns()
    for action in actions:
        call(action)
    return (time.thread_time_ns() - started_ns) / len(actions) / 1000.0


def measure(options):
    for name, parts in CHAINS.items():
        for size in (4, 6):
            space = box(1.0, size)
            space.seed(0)
            actions = [space.sample() for _ in range(1000)]
            chain = ActionChain(parts)
            chain.connect(space, np.zeros(size, np.float32), 0.05)
            turns = in_turns(
                options.repeats,
                ours=partial(us, chain, actions),
                limit=partial(us, lambda a: np.array(a.tolist(), np.float32), actions),
            )
            yield {"what": f"{name}, {size} numbers, µs", **turns, "goal": 2}


if __name__ == "__main__":
    benchmark(__doc__, measure, repeats=200, quick={"repeats": 20})
