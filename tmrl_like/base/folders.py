"""The folder in which tmrl_like keeps its files."""

from __future__ import annotations

import os
from pathlib import Path

from tmrl_like.errors import ConfigError

ROOT_VARIABLE = "TMRL_LIKE_HOME"


def data_folder() -> Path:
    """Return the folder of all files that tmrl_like keeps: $TMRL_LIKE_HOME, else ~/.tmrl_like.

    Raises:
        ConfigError: the user has no home.
    """
    try:
        return Path(os.environ.get(ROOT_VARIABLE) or "~/.tmrl_like").expanduser()
    except RuntimeError:
        raise ConfigError(
            f"this user has no home folder for files: set {ROOT_VARIABLE} to a folder"
        ) from None
