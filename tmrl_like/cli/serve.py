"""`tmrl-like server`: the relay between workers and trainer."""

from __future__ import annotations

from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.stopping import Stopper


def main(arguments: Arguments) -> int:
    """Serve until a stop is requested."""
    stopper = Stopper(arguments.supervised)
    with arguments.experiment.make_server() as server:
        # not an exception: raised inside Thread.join, it makes Python 3.11 believe that the thread
        # has ended
        stopper.on_stop = server.close
        if arguments.supervised:
            print("ready", server.address[1])
        server.serve_forever()
    return stopper.exit_code
