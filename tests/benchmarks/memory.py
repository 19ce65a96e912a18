"""Batches of 256 out of the memory, appending to it, and its size, beside plain numpy and beside tmrl's.

    python tests/benchmarks/memory.py [--seconds 1] [--repeats 5] [--sizes 100000 1000000] [--images 100000]
        [--peer PYTHON]

drone      transitions with 4 numbers and 4 buffered actions in each observation, from `ReplayMemory` to tensors
tutorial   the same through a user's own `get_transition` (lists)
images     stacks of 4 frames 64 x 64 uint8, stored as single frames; two stacks per transition
races      512 transitions of three steps with pictures 64 x 64, in mini-races and without
append     a packet of 100 samples into a full memory of the largest size
floor      plain numpy: precomputed columns, one gather each, no structure, no history across episodes

With `--peer` the same runs on tmrl's memories under another Python (torch, numpy, pandas, and
`tmrl==0.7.1` without its dependencies), taking turns with ours: A B A B. Medians.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import Options, finish, median, peer_has, repeat
from _memory_work import (
    ACT_BUF_LEN,
    BATCH,
    FRAMES,
    PAYLOAD_BYTES,
    drone_columns,
    drone_rows,
    image_columns,
    milliseconds,
    per_second,
    tutorial_memory,
)

from tmrl_like.replay import MiniRaces, ReplayMemory
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.types import Buffer, Info
from tmrl_like.wire.columns import Columns
from tmrl_like.wire.schema import schema_of

GOALS = {"drone_100000": 10_000, "drone_1000000": 6_000, "images_100000": 1_000}
GOAL_APPEND_MS = 0.2
_BLOCK = 10_000


class ColumnBlock:
    """Samples as columns, as they come out of a packet."""

    timing = None

    def __init__(self, columns: dict[str, Any], start: int, end: int) -> None:
        obs = columns["obs"]
        leaves = list(obs) if isinstance(obs, np.ndarray) and obs.ndim == 3 and len(obs) == 4 else [obs]
        flags = columns["terminated"], columns["truncated"]
        parts = [part[start:end] for part in (columns["act"], *leaves, columns["rew"], *flags)]
        observed = tuple(leaf[0].copy() for leaf in leaves) if len(leaves) > 1 else obs[0]
        schema = schema_of((columns["act"][0], observed, columns["rew"][0], False, False, {}))
        self.segments = (Columns(schema, end - start, tuple(parts)),)
        self.is_reset = columns["is_reset"][start:end]
        self.episode = np.zeros(end - start, np.uint8)

    def __len__(self) -> int:
        return len(self.is_reset)

    def samples(self) -> list[Any]:
        raise NotImplementedError


def filled(columns: dict[str, Any], **options: Any) -> ReplayMemory:
    """Our memory, full of these samples."""
    n = len(columns["rew"])
    memory = ReplayMemory(memory_size=n, batch_size=BATCH, **options)
    for start in range(0, n, _BLOCK):
        memory.append(Buffer(stream="w", blocks=[ColumnBlock(columns, start, min(n, start + _BLOCK))]))
    return memory


def held_bytes(memory: ReplayMemory) -> int:
    """All arrays: columns and index."""
    columns = [column.array for field in memory._rebuilder.table.fields.values() for column in field.columns]
    parts = [*vars(memory._index).values(), *vars(memory._index.training).values()]
    arrays = {id(value): value for value in (*columns, *parts) if isinstance(value, np.ndarray)}
    return sum(array.nbytes for array in arrays.values())


def filled_tutorial(columns: dict[str, Any]) -> MemoryDataloading:
    memory = tutorial_memory(MemoryDataloading)(memory_size=len(columns["rew"]), batch_size=BATCH)
    resets = columns["is_reset"].tolist()
    rows = [(*row[:5], Info(is_reset=reset)) for row, reset in zip(drone_rows(columns), resets, strict=True)]
    for start in range(0, len(rows), _BLOCK):
        memory.append(Buffer(rows[start : start + _BLOCK], "w"))
    return memory


def drone_floor(columns: dict[str, Any]) -> Callable[[], Any]:
    """One gather per column, to tensors."""
    rng = np.random.default_rng(0)
    flags = columns["rew"], columns["terminated"].astype(np.float32), columns["truncated"].astype(np.float32)
    arrays = [np.ascontiguousarray(columns["obs"][:, :, 0].T), columns["act"]]

    def batch() -> list[torch.Tensor]:
        rows = rng.integers(ACT_BUF_LEN + 1, len(flags[0]), BATCH)
        obs = arrays[0].take(np.stack((rows - 1, rows)), axis=0)
        acts = arrays[1].take(rows - np.arange(ACT_BUF_LEN + 1)[:, None], axis=0)
        return [torch.from_numpy(a) for a in (obs, acts, *(column.take(rows) for column in flags))]

    return batch


def image_floor(columns: dict[str, Any]) -> Callable[[], Any]:
    rng = np.random.default_rng(0)

    def batch() -> torch.Tensor:
        rows = rng.integers(FRAMES, len(columns["obs"]), (BATCH, 1)) + np.arange(1 - FRAMES, 1)
        return torch.from_numpy(columns["obs"].take(np.stack((rows - 1, rows)), axis=0))

    return batch


class Peer:
    """tmrl's memories, in a process under another Python."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("_peer_memory.py")
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, line: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        for answer in self._process.stdout:
            if answer.startswith("answer "):
                return float(json.loads(answer.removeprefix("answer ")))
        raise SystemExit(f"the peer ended at {line!r}")

    def close(self) -> None:
        self._process.communicate()


def compare(
    result: dict[str, Any],
    name: str,
    calls: dict[str, Callable[[], Any]],
    peer: Peer | None,
    arguments: argparse.Namespace,
) -> None:
    """Batches per second of each, taking turns."""
    rates = [lambda call=call: per_second(call, arguments.seconds) for call in calls.values()]
    labels = list(calls)
    if peer is not None:
        rates.append(lambda: peer.ask(f"rate {arguments.seconds}"))
        labels.append("tmrl")
    for label, values in zip(labels, repeat(arguments.repeats, *rates), strict=True):
        result[f"memory_{name}_{label}_per_s"] = median(values)
    if name in GOALS:
        result[f"memory_{name}_goal_per_s"] = GOALS[name]


def drone(result: dict[str, Any], n: int, peer: Peer | None, arguments: argparse.Namespace) -> None:
    columns = drone_columns(n)
    memory = filled(columns, act_buf_len=ACT_BUF_LEN)
    held = held_bytes(memory)
    peer_held = peer.ask(f"build drone {n}") if peer else None
    calls = {"ours": memory.sample, "floor": drone_floor(columns)}
    compare(result, f"drone_{n}", calls, peer, arguments)
    result[f"memory_drone_{n}_bytes_per_transition"] = held / n
    result[f"memory_drone_{n}_times_payload"] = held / n / PAYLOAD_BYTES
    if n == max(arguments.sizes):
        packet = Buffer(stream="w", blocks=[ColumnBlock(columns, 0, 100)])
        result["memory_append_100_ours_ms"] = milliseconds(lambda: memory.append(packet), 100)
        result["memory_append_100_goal_ms"] = GOAL_APPEND_MS
    if peer is not None and peer_held is not None:
        result[f"memory_drone_{n}_tmrl_bytes_per_transition"] = peer_held
        if n == max(arguments.sizes):
            result["memory_append_100_tmrl_ms"] = peer.ask("append")


def options(result: dict[str, Any], n: int, arguments: argparse.Namespace) -> None:
    """What n-step returns cost."""
    columns = drone_columns(n)
    plain = filled(columns, act_buf_len=ACT_BUF_LEN)
    returns = filled(columns, act_buf_len=ACT_BUF_LEN, n_steps=3, gamma=0.99)
    calls = {"uniform": plain.sample, "3_steps": returns.sample}
    compare(result, f"options_{n}", calls, None, arguments)


def tutorial(result: dict[str, Any], n: int, peer: Peer | None, arguments: argparse.Namespace) -> None:
    memory = filled_tutorial(drone_columns(n))
    if peer is not None:
        peer.ask(f"build tutorial {n}")
    compare(result, f"tutorial_{n}", {"ours": memory.sample}, peer, arguments)


def images(result: dict[str, Any], n: int, peer: Peer | None, arguments: argparse.Namespace) -> None:
    columns = image_columns(n)
    memory = filled(columns, frame_stack=FRAMES)
    if peer is not None:
        peer.ask(f"build images {n}")
    compare(result, f"images_{n}", {"ours": memory.sample, "floor": image_floor(columns)}, peer, arguments)


def races(result: dict[str, Any], n: int, arguments: argparse.Namespace) -> None:
    """What mini-races cost."""
    columns = image_columns(n)
    plain, in_races = (
        filled(columns, n_steps=3, gamma=1.0, mini_races=mini_races) for mini_races in (None, MiniRaces(steps=117))
    )
    plain.batch_size = in_races.batch_size = 512
    calls = [lambda memory=memory: per_second(memory.sample, arguments.seconds) for memory in (plain, in_races)]
    rates = repeat(arguments.repeats, *calls)
    result["memory_races_plain_per_s"], result["memory_races_per_s"] = map(median, rates)
    result["memory_races_times_plain"] = median([a / b for a, b in zip(*rates, strict=True)])
    result["memory_races_times_plain_goal"] = 1.2


def main() -> None:
    parser = Options(__doc__, seconds=0.2, repeats=1, sizes=[10_000], images=5_000)
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="drone transitions")
    parser.add_argument("--images", type=int, default=100_000, help="frames")
    parser.add_argument("--peer", metavar="PYTHON", help="a Python that has tmrl")
    arguments = parser.parse()
    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    peer = Peer(arguments.peer) if peer_has(arguments.peer, "tmrl") else None
    for n in arguments.sizes:
        drone(result, n, peer, arguments)
        tutorial(result, n, peer, arguments)
        options(result, n, arguments)
    images(result, arguments.images, peer, arguments)
    races(result, arguments.images // 5, arguments)
    if peer is not None:
        peer.close()
    finish(result)


if __name__ == "__main__":
    main()
