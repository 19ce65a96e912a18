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

from tmrl_like.cli.app import main

__all__ = ["main"]
