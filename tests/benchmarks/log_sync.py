"""What it costs to have samples on the disk before they are acknowledged as stored.

    python tests/benchmarks/log_sync.py [--packets 150000] [--repeats 7] [--sync-every-s 0.25] [--folder FOLDER]

rate      samples a second that a trainer's connection thread takes, decodes and writes to its log, until all are
          stored: with syncs, and without, in turns; the memory is left out
cost      how much less that is with syncs, in percent; goal: at most 10
behind    the longest time from a packet's arrival until it is stored, with syncs
limit     the same bytes, written by 256 KiB and synced once at the end (fdatasync): samples a second
fsync     median of a small write and its sync, in the same folder
"""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _common import Options, finish, median, repeat
from checkpoint import PACKET, drone_record, renumbered

from tmrl_like.delivery.log import PacketLog, lock_folder
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.wire import messages as m

BUNDLE = 10
DISTINCT = 20
PIECE = 256 << 10
GOAL_PERCENT = 10.0


def bundles_of(packets: int) -> list[tuple[m.Bundle, bytes]]:
    bodies = [drone_record(sequence) for sequence in range(1, DISTINCT + 1)]
    records = [renumbered(bodies[sequence % DISTINCT], sequence) for sequence in range(1, packets + 1)]
    starts = range(0, packets, BUNDLE)
    return [(m.Bundle("bench", 1, PACKET * BUNDLE, at), b"".join(records[at : at + BUNDLE])) for at in starts]


def take_all(root: Path, bundles: list[tuple[m.Bundle, bytes]], behind: list[float], sync_every_s: float) -> float:
    """Samples a second."""
    with tempfile.TemporaryDirectory(dir=root) as name, ThreadPoolExecutor(1) as beside:
        folder = Path(name)
        log = PacketLog(folder, lock_folder(folder), 16 << 20, sync_every_s, beside)
        receiver = Receiver(log, "bench", keep_samples=1 << 40)
        arrived: list[float] = []
        stored, worst = 0, 0.0
        start = time.perf_counter()
        coming = iter(bundles)
        while stored < len(bundles) * BUNDLE:
            found = next(coming, None)
            now = time.perf_counter()
            if found is None:
                time.sleep(0.001)  # as the connection's thread does
            else:
                arrived.append(now)
                for delivery in receiver.take(found[0], memoryview(found[1]), now, lambda packet: True):
                    receiver.confirm([delivery.receipt])
            receiver.write(now)
            for ack in receiver.due():
                worst = max(worst, now - arrived[stored // BUNDLE]) if ack.stored > stored else worst
                stored = max(stored, ack.stored)
        elapsed = time.perf_counter() - start
        log.close()
    behind.append(worst)
    return len(bundles) * BUNDLE * PACKET / elapsed


def limit(root: Path, content: bytes, samples: int) -> float:
    with tempfile.NamedTemporaryFile(dir=root, buffering=0) as file:
        start = time.perf_counter()
        for at in range(0, len(content), PIECE):
            file.write(content[at : at + PIECE])
        getattr(os, "fdatasync", os.fsync)(file.fileno())
        return samples / (time.perf_counter() - start)


def fsync_s(root: Path) -> float:
    with tempfile.NamedTemporaryFile(dir=root, buffering=0) as file:

        def once() -> float:
            file.write(bytes(100))
            start = time.perf_counter()
            os.fsync(file.fileno())
            return time.perf_counter() - start

        return statistics.median(once() for _ in range(20))


def main() -> None:
    parser = Options(__doc__, packets=2000, repeats=1)
    parser.add_argument("--packets", type=int, default=150_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sync-every-s", type=float, default=0.25)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk that is measured")
    arguments = parser.parse()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        root = Path(name)
        bundles = bundles_of(arguments.packets)
        content = b"".join(body for _, body in bundles)
        behind: list[float] = []
        way = functools.partial(take_all, root, bundles, behind)
        ways = [functools.partial(way, every_s) for every_s in (0.0, arguments.sync_every_s)]
        without, with_syncs, most = repeat(
            arguments.repeats, *ways, functools.partial(limit, root, content, arguments.packets * PACKET)
        )
        result: dict[str, Any] = {"megabytes": len(content) / 1e6, "fsync_ms": 1e3 * fsync_s(root)}
    for kind, values in (("without", without), ("with", with_syncs), ("limit", most)):
        result |= {f"{kind}_samples_per_s": median(values)}
        result |= {f"{kind}_lowest": min(values), f"{kind}_highest": max(values)}
    costs = [100.0 * (1.0 - b / a) for a, b in zip(without, with_syncs, strict=True)]
    result |= {"cost_percent": median(costs), "cost_lowest": min(costs), "cost_highest": max(costs)}
    finish(result | {"behind_s": median(behind[1::2]), "goal_cost_percent": GOAL_PERCENT})


if __name__ == "__main__":
    main()
