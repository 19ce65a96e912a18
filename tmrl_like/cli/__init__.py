"""The command `tmrl-like`, which brings all parts of the package together.

Each command has its own module, imported only when the command is used: a server starts without
torch. Exit codes:

====  ===========================================================================
0     done
1     something failed
2     the user's mistake: arguments, experiment file, a missing optional package
130   stopped (Ctrl-C, SIGTERM) before it was done, as server and worker always are
====  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. With None, the arguments are the process's own, and
    it ends soon afterwards, whatever threads the user's code has started.
    """
    code = 1
    try:
        from tmrl_like.cli import app  # takes a while, in which Ctrl-C may be pressed

        code = app.main(argv)
    except KeyboardInterrupt:
        code = 130
    finally:
        if argv is None:
            from tmrl_like.cli.stopping import end_despite_threads

            end_despite_threads(code)
    return code
