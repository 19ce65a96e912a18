"""The folder in which tmrl_like keeps its files."""

from __future__ import annotations

import os
from pathlib import Path

ROOT_VARIABLE = "TMRL_LIKE_HOME"


def data_folder() -> Path:
    """Return the folder of all files that tmrl_like keeps: $TMRL_LIKE_HOME, else ~/.tmrl_like."""
    return Path(os.environ.get(ROOT_VARIABLE) or Path.home() / ".tmrl_like")
