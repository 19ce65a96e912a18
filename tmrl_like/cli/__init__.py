"""The command `tmrl-like`: the only place that sees every room.

Each command has its module and is imported when it is used: a server starts without torch. Exit codes:

====  ==================================================================================================
0     done
1     something failed
2     the user's mistake: arguments, experiment file, a missing optional package
130   stopped before it was done (Ctrl-C, SIGTERM); server and worker, which have no end, always end so
====  ==================================================================================================
"""

from tmrl_like.cli.app import main

__all__ = ["main"]
