"""Dispatches the command line to a command, and turns an exception into one line and an exit
code.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import logging
import os
import sys
from collections.abc import Sequence

from tmrl_like.base.folders import ROOT_VARIABLE, data_folder
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import is_shortage, no_thread
from tmrl_like.cli.arguments import Arguments, parse
from tmrl_like.cli.logs import set_up_logging
from tmrl_like.cli.stopping import NoThreadsStop
from tmrl_like.errors import CheckpointError, ConfigError, PolicyError, TmrlLikeError

FAILED = 1

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_MODULES = {
    "server": "serve",
    "trainer": "train",
    "worker": "work",
    "config": "print_config",
    "signal": "give_signal",
    "success-model": "learn_success",
}  # all other commands have the module of their name


def main(argv: Sequence[str] | None) -> int:
    """Run one command and return its exit code (see the package). Ctrl-C raises KeyboardInterrupt,
    unless the command handles it.
    """
    arguments: Arguments | int = 0
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`: no other file must get its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a code page of Windows lacks some characters; each line is for a reader who waits
        sys.stdout.reconfigure(errors="replace", line_buffering=True)
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        if isinstance(arguments, int):
            return arguments
        if os.environ.get(ROOT_VARIABLE):  # the user's code may change the working folder
            os.environ[ROOT_VARIABLE] = str(data_folder().absolute())
        set_up_logging(getattr(arguments, "name", None) or arguments.command, arguments.log_level)
        module = importlib.import_module(
            f"tmrl_like.cli.{_MODULES.get(arguments.command, arguments.command)}"
        )
        return int(module.main(arguments))
    except TmrlLikeError as error:
        return _say(error, _explained(error, arguments), error.exit_code)
    except BrokenPipeError:  # `tmrl-like … | head`
        sys.stdout = None
        return FAILED
    except OSError as error:
        if error.errno not in _FULL and not str(error.filename or "").startswith(
            str(data_folder())
        ):
            raise  # raised by the user's code
        where = "" if error.filename is None else f" ({error.filename})"
        cure = (
            f"give the data folder {data_folder()} room, and this user the right to write there, "
            "or name another one"
        )
        return _say(
            error, f"cannot write: {error.strerror}{where}; {cure} in {ROOT_VARIABLE}", FAILED
        )
    except MemoryError as error:
        return _say(
            error, "no memory is left: end other programs, or give this machine more", FAILED
        )
    except RuntimeError as error:
        if not is_shortage(error):
            raise
        return _say(error, str(no_thread("of a library", error)), FAILED)
    except NoThreadsStop as stop:
        return _say(stop, str(stop), FAILED)


def _say(error: BaseException, text: str, exit_code: int) -> int:
    print(f"tmrl-like: error: {one_line(text)}", file=sys.stderr)
    logging.getLogger("tmrl_like").debug("the error in full", exc_info=error)
    return exit_code


def _explained(error: TmrlLikeError, arguments: Arguments | int) -> str:
    """Return the error's text, with where its value was written, or with what may have changed if
    something no longer fits.
    """
    if isinstance(arguments, int) or "experiment" not in vars(arguments):  # no experiment was read
        return str(error)
    if isinstance(error, ConfigError):
        from tmrl_like.config.loading import with_place

        return with_place(arguments.experiment.document, str(error))
    if isinstance(error, CheckpointError | PolicyError) and " fit " in str(error):
        from tmrl_like.cli.changes import changes_since

        with contextlib.suppress(ConfigError):  # if the experiment's code cannot be imported
            return f"{error}{changes_since(arguments)}"
    return str(error)
