"""Records events in a file. Kept small so that other processes can import it quickly."""

import time
from pathlib import Path


def say(file, what):
    """Append a line with an event and its time, by a clock that all processes of a machine
    share.
    """
    with Path(file).open("a", encoding="utf-8") as lines:
        lines.write(f"{what} {time.monotonic()}\n")
