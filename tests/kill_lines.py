"""Kills what runs in this process at a line of the package."""

import sys
from pathlib import Path


class Killed(BaseException):
    """Ends what runs, as a signal would."""


def kill_after(lines, call, package):
    """Run a call, and kill it at its so-manyth line of a package; returns whether it came to
    that.
    """
    left, room = lines, str(Path(package.__file__).parent)

    def trace(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.startswith(room) or left < 0:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Killed:
        return True
    finally:
        sys.settrace(before)
    return False
