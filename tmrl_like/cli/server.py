"""`tmrl-like server`."""

from __future__ import annotations

from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.logs import set_up_logging
from tmrl_like.cli.stopping import Stopper
from tmrl_like.config.experiment import Settings
from tmrl_like.config.loading import load_settings
from tmrl_like.server.server import Server


def main(arguments: Arguments) -> int:
    """Serve until a stop is requested."""
    settings = load_settings(arguments.experiment, arguments.overrides)
    set_up_logging("server", arguments.log_level, arguments.supervised)
    stopper = Stopper(arguments.supervised)
    with make_server(settings) as server:
        # Not an exception: one that is raised inside Thread.join leaves Python 3.11 taking the thread for ended.
        stopper.on_stop = server.close
        if arguments.supervised:
            print("ready", server.address[1], flush=True)
        server.serve_forever()
    return stopper.exit_code


def make_server(settings: Settings) -> Server:
    """The server of an experiment; it listens when this returns."""
    section = settings.server
    return Server(section.port, host=section.listens_on, options=section, engine=settings.engine, **section.connection)
