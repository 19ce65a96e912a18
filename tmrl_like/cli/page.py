"""`tmrl-like page`: shows the run in a browser, and provides its metrics for Prometheus."""

from __future__ import annotations

import logging

from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.stopping import Stopper
from tmrl_like.metrics.reading import read_records
from tmrl_like.page.page_app import Page
from tmrl_like.page.watcher import Watcher

log = logging.getLogger("tmrl_like.cli")

_HISTORY_BYTES = 64 << 20


def main(arguments: Arguments) -> int:
    """Show a run until a stop is requested."""
    settings = arguments.experiment
    stopper = Stopper(arguments.supervised)
    link = settings.server.dial()
    records = read_records(settings.paths.metrics, _HISTORY_BYTES)
    watcher = Watcher(link, {"title": settings.run_name}, records)
    with Page(watcher, arguments.bind, arguments.port) as page:
        stopper.on_stop = page.close
        log.info("%s is shown at %s", settings.run_name, page.url)
        if arguments.supervised:
            print("ready")
        page.serve_forever()
    return stopper.exit_code
