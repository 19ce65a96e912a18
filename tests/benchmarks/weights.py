"""The time from `broadcast_model` in the trainer to the worker's first action with the new weights.

    python tests/benchmarks/weights.py [--repeats 9] [--sizes 0.28 10 50]

Server, trainer and worker are three processes on this machine, encrypted. The worker runs an
environment that steps every 0.2 ms and records when it first acts with each version. All use the
machine's clock. The limit sends the same bytes over two plain TCP hops through a thread.
"""

import tempfile
import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import torch
from _harness import Part, benchmark, in_turns, run_server, two_hops
from gymnasium import spaces
from kit.rings import ring_of

from tmrl_like.agents.process import tune_process
from tmrl_like.policies.actor import ActorModule

# MB: width of a two-layer network, goal in ms
SIZES = {"0.28": (256, 2), "10": (1570, 30), "50": (3530, 150)}


class Pulse(gymnasium.Env):
    """An environment that steps every 0.2 ms."""

    observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    obs = np.zeros(8, np.float32)

    def reset(self, **_):
        return self.obs, {}

    def step(self, action):
        time.sleep(0.0002)
        return self.obs, 0.0, False, False, {}


class Wide(ActorModule):
    """An actor with `width` x `width` weights. Its action ignores them, so that inference does not
    affect the figure.
    """

    def __init__(self, observation_space, action_space, width):
        super().__init__(observation_space, action_space)
        self.a = torch.nn.Linear(8, width)
        self.b = torch.nn.Linear(width, width)
        self.c = torch.nn.Linear(width, 2)

    def act(self, obs, test=False):
        return np.zeros(2, np.float32)


def run_worker(port, keys, width, pipe):
    from tmrl_like.networking import RolloutWorker

    torch.set_num_threads(1)
    where = {"server_ip": "127.0.0.1", "server_port": port, "keys_dir": keys}
    worker = RolloutWorker(Pulse, partial(Wide, width=width), **where, model_path=None)
    seen = 0
    obs, _ = worker.reset(collect_samples=False)
    worker.wait_connected(10)
    pipe.send("ready")
    while True:
        obs, *_ = worker.step(obs, test=False, collect_samples=False)
        if worker.policy_version != seen:
            seen = worker.policy_version
            pipe.send(time.time())


def published(width, repeats):
    """Return the times from publication to use, in ms."""
    from tmrl_like.trainer.trainer_link import TrainerLink
    from tmrl_like.transport import KeyFolder, connect
    from tmrl_like.wire.spaces import describe_spaces

    actor = Wide(Pulse.observation_space, Pulse.action_space, width)
    described = describe_spaces(Pulse.observation_space, Pulse.action_space)
    used_ms = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        keys = Path(folder) / "keys"
        server = stack.enter_context(Part(run_server, {"keys_dir": keys}))
        port = server.hear()
        connection = stack.enter_context(
            closing(connect("zmq", "127.0.0.1", port, KeyFolder(keys)))
        )
        worker = stack.enter_context(Part(run_worker, port, keys, width))
        link = stack.enter_context(
            closing(TrainerLink(ring_of(connection, "bench"), "t", described))
        )
        worker.hear()
        link.session.wait_connected(10)
        for _ in range(repeats + 2):
            started = time.time()
            link.broadcast_model(actor)
            used_ms.append((worker.hear() - started) * 1e3)
            time.sleep(0.05)
    return used_ms[2:]


def two_tcp_hops(size):
    """Return the milliseconds that the same bytes take over two TCP hops."""
    payload, buffer = bytes(size), bytearray(1 << 20)
    with two_hops() as (begin, end):
        started, got = time.perf_counter(), 0
        threading.Thread(target=begin.sendall, args=(payload,), daemon=True).start()
        while got < size:
            got += end.recv_into(buffer)
        return (time.perf_counter() - started) * 1e3


def measure(options):
    tune_process()
    torch.set_num_threads(1)
    for size in options.sizes:
        width, goal_ms = SIZES[size]
        limits = in_turns(
            options.repeats, limit=partial(two_tcp_hops, 4 * (width * width + width * 12))
        )
        yield {
            "what": f"{size} MB, until the first action with them, ms",
            "ours": published(width, options.repeats),
            **limits,
            "goal": goal_ms,
        }


if __name__ == "__main__":
    benchmark(
        __doc__, measure, repeats=9, sizes=list(SIZES), quick={"repeats": 1, "sizes": ["0.28"]}
    )
