"""`python -m tmrl_like` is the command `tmrl-like`."""

import sys

from tmrl_like.cli import main

if __name__ == "__main__":
    sys.exit(main())
