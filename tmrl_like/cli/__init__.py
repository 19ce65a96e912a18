"""The command `tmrl-like`: the only place that sees every room.

Each command has its module and is imported when it is used: a server starts without torch. Exit codes:

====  ==================================================================================================
0     done; or a server or worker was stopped (Ctrl-C, SIGTERM), which is how these two end
1     something failed
2     the user's mistake: arguments, experiment file, a missing optional package
130   a command that has an end was stopped before it got there
====  ==================================================================================================
"""

from tmrl_like.cli.app import main

__all__ = ["main"]
