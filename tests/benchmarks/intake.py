"""How long a worker's other threads are held up while policies are taken in.

    python tests/benchmarks/intake.py [--repeats 20]

One thread sleeps 1 ms at a time, as a control loop does, and notes its longest gap; the other one takes policies of an
actor in torch out of the slots that a link fills, with the probe. The floor is the same thread's gap while nothing is
taken in. (A policy of an actor in numpy costs the worker's process nothing.)
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from _common import Options, finish, median
from gymnasium import spaces

from tmrl_like.delivery.folder import open_folder
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.intake import TorchIntake
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.policies.slots import PolicySlots

WIDTHS = {"0.28MB": 256, "10MB": 1570, "50MB": 3530}
SPACES = spaces.Box(-1.0, 1.0, (8,), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32)
_REST_S = 0.02


class TwoLayers(ActorModule):
    """A network of about `width` x `width` weights."""

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], width: int) -> None:
        super().__init__(observation_space, action_space)
        layer, relu = torch.nn.Linear, torch.nn.ReLU()
        self.net = torch.nn.Sequential(
            layer(8, width), relu, layer(width, width), relu, layer(width, 2), torch.nn.Tanh()
        )

    def act(self, obs: torch.Tensor, test: bool = False) -> Any:
        return self.net(obs).numpy()


def longest_gap_ms(during: Any) -> float:
    """The longest gap of a thread that sleeps 1 ms at a time, while `during` runs."""
    done, gaps = threading.Event(), []

    def sleep() -> None:
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=sleep)
    thread.start()
    during()
    done.set()
    thread.join()
    return max(gaps) * 1e3


def measure(width: int, repeats: int) -> dict[str, float]:
    """Milliseconds: one intake, the longest gap during all of them, and without any."""
    make = partial(TwoLayers, *SPACES, width)
    folder = open_folder(None, None)
    slots = PolicySlots(folder.path, make().manifest())
    intake, acting, times = TorchIntake(slots, PolicyProbe(*SPACES), make), make(), []
    weights = np.frombuffer(make().weights(), np.uint8)

    def take_in() -> None:
        nonlocal acting
        slot = slots.free_slot()
        np.copyto(np.frombuffer(slots.slots[slot], np.uint8), weights)  # without the interpreter lock
        slots.publish(slot, slots.published + 1, time.time(), time.perf_counter())
        started = time.perf_counter()
        intake.on_published()
        times.append((time.perf_counter() - started) * 1e3)
        policy = intake.take(acting)
        assert policy is not None
        acting = policy.actor
        time.sleep(_REST_S)

    for _ in range(3):  # instances and memory are made with the first ones
        take_in()
    times.clear()
    gap_ms = longest_gap_ms(lambda: [take_in() for _ in range(repeats)])
    floor_ms = longest_gap_ms(lambda: time.sleep(repeats * _REST_S))
    folder.close()
    return {"intake_ms": median(times), "longest_gap_ms": gap_ms, "longest_gap_floor_ms": floor_ms}


def main() -> None:
    parser = Options(__doc__, repeats=3)
    parser.add_argument("--repeats", type=int, default=20)
    asked = parser.parse()
    widths = dict(list(WIDTHS.items())[: 2 if asked.quick else 3])
    torch.set_num_threads(1)
    finish({f"{label}_{k}": v for label, width in widths.items() for k, v in measure(width, asked.repeats).items()})


if __name__ == "__main__":
    main()
