"""Run the histories of seeds: `python tests/simulation/simulate.py SEED [SEED …] --steps 1000
[--trace]`.
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
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument(
        "--up-to", action="store_true", help="the seeds from the first to the second"
    )
    parser.add_argument(
        "--first", action="store_true", help="end with the first seed that is refused"
    )
    parser.add_argument("--trace", action="store_true", help="print what happened")
    options = parser.parse_args()
    seeds = range(*options.seeds) if options.up_to else options.seeds
    counts, started, failed = Counter(), time.perf_counter(), []
    gc.freeze()
    for seed in seeds:
        lines = [] if options.trace else None
        try:
            world = live(seed, options.steps, lines)
            counts += world.counts
            counts["samples"] += world.samples
            print(f"seed {seed}: {world.hash:08x}")
        except Broken as error:
            failed.append(seed)
            print(error, file=sys.stderr)
            if options.first:
                break
        print("\n".join(lines or ()), end="")
    seconds = time.perf_counter() - started
    steps = options.steps * len(seeds)
    for what, count in sorted(counts.items()):
        print(f"{count:8d} {what}")
    print(f"{steps} steps in {seconds:.1f} s, {steps / seconds:.0f} a second; failed: {failed}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
