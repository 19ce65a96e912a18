"""From the command line to a command, and from an exception to one line and an exit code."""

from __future__ import annotations

import errno
import importlib
import logging
import sys
from collections.abc import Sequence

from tmrl_like.base.text import one_line
from tmrl_like.cli.arguments import Arguments, parse
from tmrl_like.config.paths import ROOT_VARIABLE, data_folder
from tmrl_like.errors import CheckpointError, PolicyError, TmrlLikeError

INTERRUPTED = 130
FAILED = 1

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_ENDLESS = ("server", "worker", "show")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (see the package's docstring). None: the process's own arguments."""
    arguments: Arguments | int = 0
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        return arguments if isinstance(arguments, int) else _run(arguments)
    except TmrlLikeError as error:
        return _say(error, f"{error}{_changes(error, arguments)}", error.exit_code)
    except BrokenPipeError:  # `tmrl-like … | head`
        sys.stdout = None
        return FAILED
    except OSError as error:
        if error.errno not in _FULL and not str(error.filename or "").startswith(str(data_folder())):
            raise  # of code of the user's
        where = "" if error.filename is None else f" ({error.filename})"
        cure = f"give the data folder {data_folder()} room, and this user the right to write there, or name another one"
        return _say(error, f"cannot write: {error.strerror}{where}; {cure} in {ROOT_VARIABLE}", FAILED)
    except KeyboardInterrupt:
        return 0 if getattr(arguments, "command", "") in _ENDLESS else INTERRUPTED


def _say(error: Exception, text: str, exit_code: int) -> int:
    print(f"tmrl-like: error: {one_line(text)}", file=sys.stderr, flush=True)
    logging.getLogger("tmrl_like").debug("the error in full", exc_info=error)
    return exit_code


def _changes(error: TmrlLikeError, arguments: Arguments | int) -> str:
    """Why weights, a checkpoint or its samples may not fit; empty: that is not the error, or nobody knows."""
    if not isinstance(error, CheckpointError | PolicyError) or " fit " not in str(error):
        return ""
    from tmrl_like.cli.changes import changes_since

    return "" if isinstance(arguments, int) or "experiment" not in arguments else changes_since(arguments)


def _run(arguments: Arguments) -> int:
    if arguments.print_config and arguments.experiment:
        from tmrl_like.config.loading import dump_experiment

        print(dump_experiment(arguments.experiment, arguments.overrides), end="")
        return 0
    module = importlib.import_module(f"tmrl_like.cli.{arguments.command.replace('-', '_')}")
    return int(module.main(arguments))
