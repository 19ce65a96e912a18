"""Run the histories of seeds, up to one that breaks a promise: `python tests/simulation/simulate.py
FIRST [LAST] --steps 1000 [--trace]`.
"""

import argparse
import gc
import sys
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
    gc.freeze()
    for seed in range(options.first, last + 1):
        lines = [] if options.trace else None
        try:
            world = live(seed, options.steps, lines)
        except Broken as error:
            return str(error)
        finally:
            print("\n".join(lines or ()), end="")
        print(f"seed {seed}: {world.hash:08x}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
