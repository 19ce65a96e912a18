"""The time from `broadcast_model` in the trainer to the worker's first action with the new weights.

    python tests/benchmarks/weights.py [--repeats 9] [--sizes 0.28 10 50]

Server, trainer and worker are three processes on this machine, encrypted. The worker runs an
environment that steps every 0.2 ms and records when it first acts with each version. All use the
machine's clock. The limit sends the same bytes over two plain TCP hops through a thread.
"""

import time
from contextlib import closing
from functools import partial

import torch
from _harness import Parts, be_quiet, benchmark, link_to, over_two_hops, trainer_link
from _heavy_actor import HeavyActor
from _recorded import Kind, Ticking
from kit.boxes import box

from tmrl_like.agents.process import tune_process
from tmrl_like.wire.spaces import describe_spaces

# MB: width of the actor, goal in ms
SIZES = {"0.28": (265, 2), "10": (1581, 30), "50": (3536, 150)}
KIND = Kind(5000.0, box(1.0, 8))


def run_worker(port, keys, width, pipe):
    from tmrl_like.networking import RolloutWorker

    be_quiet()
    torch.set_num_threads(1)
    where = {"server_ip": "127.0.0.1", "server_port": port, "keys_dir": keys}
    actor = partial(HeavyActor, width=width)
    worker = RolloutWorker(partial(Ticking, KIND), actor, **where, model_path=None)
    seen = 0
    obs = worker.run_in_control_thread(lambda: worker.loop.reset(collect_samples=False))
    worker.wait_connected(10)
    pipe.send("ready")
    while True:
        step = partial(worker.loop.step, obs, test=False, collect_samples=False)
        obs, *_ = worker.run_in_control_thread(step)
        if worker.policy_version != seen:
            seen = worker.policy_version
            pipe.send(time.time())


def published(width, repeats):
    """Return the times from publication to use, in ms."""
    spaces = KIND.observation, Ticking.action_space
    actor, used_ms = HeavyActor(*spaces, width), []
    with Parts() as parts:
        _, port = parts.serve()
        worker = parts.start(run_worker, port, parts.keys, width)
        dialled = link_to(port, parts.keys)
        link = parts.enter_context(closing(trainer_link(dialled, describe_spaces(*spaces))))
        worker.hear()
        for _ in range(repeats + 2):
            started = time.time()
            link.broadcast_model(actor)
            used_ms.append((worker.hear() - started) * 1e3)
            time.sleep(0.05)
    return used_ms[2:]


def measure(options):
    tune_process()
    torch.set_num_threads(1)
    for size in options.sizes:
        width, goal_ms = SIZES[size]
        limits_ms = [1e3 * over_two_hops(4 * width * width) for _ in range(options.repeats)]
        yield {
            "what": f"{size} MB, until the first action with them, ms",
            "ours": published(width, options.repeats),
            "limit": limits_ms,
            "goal": goal_ms,
        }


if __name__ == "__main__":
    benchmark(
        __doc__, measure, repeats=9, sizes=list(SIZES), quick={"repeats": 1, "sizes": ["0.28"]}
    )
