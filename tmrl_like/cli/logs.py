"""Log lines of one part, which begin with its name."""

from __future__ import annotations

import logging
import warnings

from tmrl_like.base.text import one_line


def set_up_logging(role: str, level: str) -> None:
    """Show log lines of `level` and above on standard error, with `role` in front."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s {role:<8} %(levelname)-8s%(message)s", "%H:%M:%S")
    )
    chosen = getattr(logging, level.upper())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(chosen, logging.WARNING))
    logging.getLogger("tmrl_like").setLevel(chosen)
    warnings.formatwarning = lambda message, category, *_, **__: (
        f"{category.__name__}: {one_line(str(message))}"
    )
    logging.captureWarnings(True)
