"""Measures tmrl's memories on request: run by `memory.py --peer PYTHON`, in tmrl's own
environment.

Reads one line at a time, `build NAME N`, `rate SECONDS` or `append`, and answers each with a
number: bytes per transition, batches per second, or the median of the times in milliseconds.
Loads tmrl's memory modules without the rest of the package, which would download and configure a
game: beside `pip install --no-deps tmrl==0.7.1` it needs only torch, numpy and pandas.
"""

import importlib.util
import statistics
import sys
import time
import types
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from _memory_work import (
    BATCH,
    FRAMES,
    drone_columns,
    drone_rows,
    image_columns,
    per_second,
    resident_bytes,
    tutorial_memory,
)


def skip_package_setup():
    """Let modules of tmrl be imported without running the package's `__init__`."""
    spec = importlib.util.find_spec("tmrl")
    if spec is None:
        raise SystemExit("this Python has no tmrl: pip install --no-deps tmrl==0.7.1")
    package = types.ModuleType("tmrl")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["tmrl"] = package


def buffer(rows):
    class Buffer:
        stat_train_return = stat_test_return = 0.0
        stat_train_steps = stat_test_steps = 0
        memory = rows

        def __len__(self):
            return len(rows)

    return Buffer()


def build(name, n):
    options = {"memory_size": n, "batch_size": BATCH, "nb_steps": 1, "device": "cpu"}
    if name == "images":
        memory = import_module("tmrl.custom.custom_memories").MemoryTMFull(
            imgs_obs=FRAMES, act_buf_len=1, **options
        )
        columns = image_columns(n)
        speeds = [row.copy() for row in columns["rew"].reshape(n, 1)]
        observed = [(s, s, s, frame) for s, frame in zip(speeds, columns["obs"], strict=True)]
        rest = (columns["rew"], columns["terminated"].tolist(), columns["truncated"].tolist())
        memory.append(
            buffer(
                list(zip(list(columns["act"]), observed, *rest, [{} for _ in speeds], strict=True))
            )
        )
        return memory
    if name == "tutorial":
        memory = tutorial_memory(import_module("tmrl.memory").TorchMemory)(**options)
    else:
        memory = import_module("tmrl.custom.custom_memories").GenericTorchMemory(**options)
    memory.append(buffer(drone_rows(drone_columns(n), whole_obs=name == "drone")))
    return memory


def main():
    skip_package_setup()
    import_module("tmrl.custom.custom_memories")  # before memory is counted
    memory = None
    for line in sys.stdin:
        command, *arguments = line.split()
        answer = 0.0
        if command == "build":
            memory = None
            before = resident_bytes()
            memory = build(arguments[0], int(arguments[1]))
            answer = (resident_bytes() - before) / int(arguments[1])
        elif command == "rate":
            answer = per_second(memory.sample, float(arguments[0]))
        elif command == "append":
            packet = buffer(drone_rows(drone_columns(100), whole_obs=True))
            times_s = []
            for _ in range(15):
                started = time.perf_counter()
                memory.append(packet)
                times_s.append(time.perf_counter() - started)
            answer = 1e3 * statistics.median(times_s)
        print("answer", answer, flush=True)


if __name__ == "__main__":
    main()
