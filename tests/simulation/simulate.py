"""Run the histories of seeds, up to one that breaks a promise: `python tests/simulation/simulate.py
FIRST [LAST] --steps 1000 [--trace]`.
"""

import argparse
import gc
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from histories import Broken, live


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?", help="by default the first alone")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--trace", action="store_true", help="print what happened")
    options = parser.parse_args()
    last = options.first if options.last is None else options.last
    counts, started = Counter(), time.perf_counter()
    gc.freeze()
    for seed in range(options.first, last + 1):
        lines = [] if options.trace else None
        try:
            world = live(seed, options.steps, lines)
        except Broken as error:
            return str(error)
        finally:
            print("\n".join(lines or ()), end="")
        counts += world.counts
        counts["samples"] += world.samples
        counts["steps"] += options.steps
        print(f"seed {seed}: {world.hash:08x}")
    for what, count in sorted(counts.items()):
        print(f"{count:8d} {what}")
    print(f"{time.perf_counter() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
