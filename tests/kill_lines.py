"""Kill a call in this process at a line of the package."""

import sys
from pathlib import Path


class Killed(BaseException):
    """Ends the running code as a signal would."""


def kill_after(lines, call, package):
    """Run a call, and kill it after it has run `lines` lines of a package; return whether it was
    killed.
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
