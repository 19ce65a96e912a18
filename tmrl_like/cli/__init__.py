"""The command `tmrl-like`: the only place that sees every room.

Each command has its module and is imported when it is used: a server starts without torch. Exit
codes:

====  ===========================================================================
0     done
1     something failed
2     the user's mistake: arguments, experiment file, a missing optional package
130   stopped (Ctrl-C, SIGTERM) before it was done, as server and worker always are
====  ===========================================================================
"""

from tmrl_like.cli.app import main

__all__ = ["main"]
