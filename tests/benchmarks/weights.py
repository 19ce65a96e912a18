"""From `broadcast_model` in the trainer to the worker's next action with the new weights.

    python tests/benchmarks/weights.py [--repeats 9] [--transport zmq]

Server, trainer and worker are three processes on this machine, encrypted. The worker runs an
environment that steps every 0.2 ms and notes when it first acts with each version. Clocks are the
machine's own. The floor sends the same bytes over two plain TCP hops through a third process.

Then a SAC agent (256 x 256, batch of 256) trains in the thread that publishes: how long `broadcast_model` holds it, one
`memcpy` of the same bytes right before it, and what else it loses until the worker acts with the policy. All of that is
the processor's and the interpreter's time, which the three processes and the publishing thread take from it.

Last, the policy store: from `broadcast_model` until another process has read the tagged file, and how long the call
holds its thread, in turns with a trainer that keeps nothing. The floor writes the same bytes there, with fsync.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from _common import Options, Part, finish, median, run_server, two_hops
from gymnasium import spaces
from kit.rings import ring_of
from learner import SPACES, batch, rate

from tmrl_like.agents import SACAgent
from tmrl_like.agents.process import tune_process
from tmrl_like.policies.actor import ActorModule

SIZES = {"0.28MB": 256, "10MB": 1570, "50MB": 3530}  # width of a two-layer network


class Pulse(gymnasium.Env[Any, Any]):
    """Steps every 0.2 ms."""

    observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    obs = np.zeros(8, np.float32)

    def reset(self, **_: Any) -> Any:
        return self.obs, {}

    def step(self, action: Any) -> Any:
        time.sleep(0.0002)
        return self.obs, 0.0, False, False, {}


class Wide(ActorModule):
    """Holds `width` x `width` weights; its action ignores them, so that inference does not blur the figure."""

    def __init__(self, observation_space: Any, action_space: Any, width: int) -> None:
        super().__init__(observation_space, action_space)
        self.a = torch.nn.Linear(8, width)
        self.b = torch.nn.Linear(width, width)
        self.c = torch.nn.Linear(width, 2)

    def act(self, obs: Any, test: bool = False) -> Any:
        return np.zeros(2, np.float32)


def run_worker(port: int, keys: Path, width: int, transport: str, pipe: Any) -> None:

    from tmrl_like.networking import RolloutWorker

    torch.set_num_threads(1)
    worker = RolloutWorker(
        Pulse,
        partial(Wide, width=width),
        server_ip="127.0.0.1",
        server_port=port,
        keys_dir=keys,
        transport=transport,
        model_path=None,
    )
    seen = 0
    obs, _ = worker.reset(collect_samples=False)
    worker.wait_connected(10)
    pipe.send("ready")
    while True:
        before = time.perf_counter()
        obs, *_ = worker.step(obs, test=False, collect_samples=False)
        took_s = time.perf_counter() - before - sum(np.diff(worker.loop.times)[1:])
        if worker.policy_version != seen:
            seen = worker.policy_version
            pipe.send((seen, time.time(), took_s))


def measure(width: int, repeats: int, transport: str) -> dict[str, float]:
    """Median milliseconds from publication to use, and what it cost trainer and worker."""
    from tmrl_like.trainer.trainer_link import TrainerLink
    from tmrl_like.transport import KeyFolder, connect
    from tmrl_like.wire.spaces import describe_spaces

    tune_process()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        with Part(run_server, {"keys_dir": keys, "transport": transport}) as server:
            port = server.hear()
            actor = Wide(Pulse.observation_space, Pulse.action_space, width)
            spaces_ = describe_spaces(Pulse.observation_space, Pulse.action_space)
            with (
                closing(connect(transport, "127.0.0.1", port, KeyFolder(keys))) as connection,
                Part(run_worker, port, keys, width, transport) as worker,
                closing(TrainerLink(ring_of(connection, "bench"), "t", spaces_)) as link,
            ):
                worker.hear()
                link.session.wait_connected(10)
                latencies_s, blocked_s = [], []
                for _ in range(repeats + 2):
                    started = time.time()
                    link.broadcast_model(actor)
                    _, used_at, blocked = worker.hear()
                    latencies_s.append(used_at - started)
                    blocked_s.append(blocked)
                    time.sleep(0.05)
                beside = beside_training(link, actor, worker, repeats + 2)
    return {
        "latency_ms": median(latencies_s[2:]) * 1e3,
        "latency_min_ms": min(latencies_s[2:]) * 1e3,
        "latency_max_ms": max(latencies_s[2:]) * 1e3,
        **{name: median(values_ms[2:]) for name, values_ms in beside.items()},
        "training_held_max_ms": max(beside["training_held_ms"]),
        "training_held_x_memcpy": median(
            [held / copy for held, copy in zip(beside["training_held_ms"], beside["memcpy_ms"], strict=True)]
        ),
        "worker_swap_ms": median(blocked_s[2:]) * 1e3,
    }


def beside_training(link: Any, actor: ActorModule, worker: Part, repeats: int) -> dict[str, list[float]]:
    """What publishing costs the thread that trains, in milliseconds, each time."""
    size = sum(t.nbytes for t in actor.state_dict().values())
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    step = partial(SACAgent(*SPACES).train, batch(256))
    copied_ms, held_ms, lost_ms = [], [], []
    rate(step, 50)
    for _ in range(repeats):
        steps_per_s = rate(step, 50)
        began = time.perf_counter()
        ctypes.memmove(target.ctypes.data, source.ctypes.data, size)
        copied = time.perf_counter()
        link.broadcast_model(actor)
        held, steps = time.perf_counter(), 0
        while not worker.pipe.poll():
            step()
            steps += 1
        lost_s = time.perf_counter() - held - steps / steps_per_s
        worker.hear()
        copied_ms.append((copied - began) * 1e3)
        held_ms.append((held - copied) * 1e3)
        lost_ms.append(lost_s * 1e3)
    return {"memcpy_ms": copied_ms, "training_held_ms": held_ms, "training_lost_ms": lost_ms}


class Nowhere:
    """A connection on which nothing arrives."""

    def send(self, data: Any) -> bool:
        return False

    def receive(self, timeout_s: float) -> None:
        time.sleep(min(timeout_s, 0.01))

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


def read_tags(folder: Path, pipe: Any) -> None:
    """Tell when each tag that is named could be read whole."""
    from tmrl_like.policies.policy_file import read_policy
    from tmrl_like.policies.policy_store import PolicyStore

    store = PolicyStore(folder)
    pipe.send("ready")
    while True:
        (tag,) = pipe.recv()
        while not store.path(tag).exists():
            time.sleep(0.0002)
        read_policy(store.path(tag))
        pipe.send(time.time())


def measure_store(width: int, repeats: int) -> dict[str, float]:
    """Median milliseconds until a tagged policy is readable elsewhere, and what that costs the training thread."""
    from tmrl_like.policies.policy_file import describe
    from tmrl_like.policies.policy_store import PolicyStore
    from tmrl_like.trainer.options import TrainerOptions
    from tmrl_like.trainer.saver import Saver
    from tmrl_like.trainer.trainer_link import TrainerLink
    from tmrl_like.wire.messages import Spaces

    actor = Wide(Pulse.observation_space, Pulse.action_space, width)
    weights, steps = actor.weights(), iter(range(1 << 30))
    readable_ms, held_ms, bare_ms, floor_ms = [], [], [], []
    with tempfile.TemporaryDirectory() as name, ExitStack() as until_end:
        folder = Path(name)
        reader = until_end.enter_context(Part(read_tags, folder / "policies"))
        reader.hear()
        options = TrainerOptions(keep_policies=10, tag_every_steps=1)
        store = PolicyStore(folder / "policies")
        saver = Saver(folder / "newest", store, describe(actor), options, lambda: next(steps))
        links = [TrainerLink(ring_of(Nowhere(), "bench"), "t", Spaces("o", "a"), saver=s) for s in (saver, None)]
        for turn in range(1, repeats + 3):
            reader.tell(f"step-{turn}")
            time.sleep(0.05)
            times = []
            for link in links:
                started, began = time.time(), time.perf_counter()
                link.broadcast_model(actor)
                times.append((time.perf_counter() - began) * 1e3)
                if link is links[0]:
                    readable_ms.append((reader.hear() - started) * 1e3)
            held_ms.append(times[0])
            bare_ms.append(times[1])
            began = time.perf_counter()
            with (folder / "floor").open("wb") as file:
                file.write(weights.data)
                file.flush()
                os.fsync(file.fileno())
            floor_ms.append((time.perf_counter() - began) * 1e3)
        for link in links:
            link.close(0.0)
    return {
        "readable_ms": median(readable_ms[2:]),
        "readable_max_ms": max(readable_ms[2:]),
        "training_held_ms": median(held_ms[2:]),
        "training_held_max_ms": max(held_ms[2:]),
        "training_held_without_ms": median(bare_ms[2:]),
        "floor_write_and_fsync_ms": median(floor_ms[2:]),
    }


def floor_ms(size: int, repeats: int) -> float:
    """The same bytes over two plain TCP hops, milliseconds."""
    payload, buffer, times = bytes(size), bytearray(1 << 20), []
    for _ in range(repeats):
        with two_hops() as (begin, end):
            started, got = time.perf_counter(), 0
            threading.Thread(target=begin.sendall, args=(payload,), daemon=True).start()
            while got < size:
                got += end.recv_into(buffer)
            times.append((time.perf_counter() - started) * 1e3)
    return median(times)


def main() -> None:
    parser = Options(__doc__, repeats=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--transport", default="zmq")
    arguments = parser.parse()
    result: dict[str, Any] = {"transport": arguments.transport}
    goals = {"0.28MB": 2.0, "10MB": 30.0, "50MB": 150.0}
    for label, width in list(SIZES.items())[: 1 if arguments.quick else 3]:
        size = 4 * (width * width + width * 12)
        for name, value in measure(width, arguments.repeats, arguments.transport).items():
            result[f"weights_{label}_{name}"] = value
        result[f"weights_{label}_floor_two_tcp_hops_ms"] = floor_ms(size, arguments.repeats)
        result[f"weights_{label}_goal_ms"] = goals[label]
    for name, value in measure_store(SIZES["0.28MB"], 10 * arguments.repeats).items():
        result[f"store_0.28MB_{name}"] = value
    result |= {"store_0.28MB_readable_goal_ms": 20.0, "store_0.28MB_training_held_goal_ms": 1.0}
    finish(result)


if __name__ == "__main__":
    main()
