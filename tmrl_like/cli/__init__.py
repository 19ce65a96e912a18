"""The command `tmrl-like`: the only place that sees every room.

Each command has its module and is imported when it is used: a server starts without torch. Exit codes:

====  ==================================================================================================
0     done; or a server or worker was stopped (Ctrl-C, SIGTERM), which is how these two end
1     something failed
2     the user's mistake: arguments, experiment file, a missing optional package
130   a command that has an end was stopped before it got there
====  ==================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code.

    Args:
        argv: the arguments; None: the process's own.
    """
    from tmrl_like.cli.app import run_command_line

    return run_command_line(argv)
