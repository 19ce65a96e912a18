"""Run the command `tmrl-like` as `python -m tmrl_like`."""

import sys

from tmrl_like.cli import main

if __name__ == "__main__":
    sys.exit(main())
