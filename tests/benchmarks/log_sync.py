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

from tmrl_like.base.files import lock_folder
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sample_store import SampleStore
from tmrl_like.wire import messages as m

DISTINCT = 20
PIECE = 256 << 10
GOAL_PERCENT = 10.0


def packets_of(number: int) -> list[bytes]:
    messages = [drone_record(k) for k in range(1, DISTINCT + 1)]
    return [renumbered(messages[k % DISTINCT], k) for k in range(1, number + 1)]


def take_all(root: Path, packets: list[bytes], behind: list[float], sync_every_s: float) -> float:
    """Samples a second."""
    with tempfile.TemporaryDirectory(dir=root) as name, ThreadPoolExecutor(1) as beside:
        folder = Path(name)
        lock = lock_folder(folder)
        assert lock is not None
        store = SampleStore(folder, lock, sync_every_s, beside if sync_every_s else None)
        receiver = Receiver(store, "bench", keep_samples=1 << 40)
        arrived: list[float] = []
        stored, worst = 0, 0.0
        start = time.perf_counter()
        coming = iter(packets)
        while stored < len(packets):
            message = next(coming, None)
            now = time.perf_counter()
            if message is None:
                time.sleep(0.001)  # as the connection's thread does
            else:
                arrived.append(now)
                packet, body = m.decode(message)
                assert isinstance(packet, m.SamplePacket)
                for delivery in receiver.take(packet, body, message, now, lambda packet: True):
                    receiver.confirm([delivery.receipt])
            receiver.write(now)
            for ack in receiver.due():
                newest = ack.stored // PACKET
                worst = max(worst, now - arrived[stored]) if newest > stored else worst
                stored = max(stored, newest)
        elapsed = time.perf_counter() - start
        store.close()
    behind.append(worst)
    return len(packets) * PACKET / elapsed


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
        packets = packets_of(arguments.packets)
        content = b"".join(packets)
        behind: list[float] = []
        way = functools.partial(take_all, root, packets, behind)
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
