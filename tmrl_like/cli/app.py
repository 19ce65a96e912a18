"""From the command line to a command, and from an exception to one line and an exit code."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence

from tmrl_like.base.text import one_line
from tmrl_like.cli.arguments import Arguments, parse
from tmrl_like.errors import TmrlLikeError

INTERRUPTED = 130
FAILED = 1

_ENDLESS = ("server", "worker", "show")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (see the package's docstring). None: the process's own arguments."""
    arguments: Arguments | int = 0
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        return arguments if isinstance(arguments, int) else _run(arguments)
    except TmrlLikeError as error:
        print(f"tmrl-like: error: {one_line(str(error))}", file=sys.stderr, flush=True)
        logging.getLogger("tmrl_like").debug("the error in full", exc_info=error)
        return error.exit_code
    except KeyboardInterrupt:
        return 0 if getattr(arguments, "command", "") in _ENDLESS else INTERRUPTED
    except BrokenPipeError:  # `tmrl-like … | head`
        sys.stdout = None
        return FAILED


def _run(arguments: Arguments) -> int:
    if arguments.print_config and arguments.experiment:
        from tmrl_like.config.loading import dump_experiment

        print(dump_experiment(arguments.experiment, arguments.overrides), end="")
        return 0
    module = importlib.import_module(f"tmrl_like.cli.{arguments.command.replace('-', '_')}")
    return int(module.main(arguments))
