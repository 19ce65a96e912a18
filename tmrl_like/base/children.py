"""Functions that start child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def start_child(
    command: Sequence[str], environment: Mapping[str, str] | None = None, **streams: Any
) -> subprocess.Popen[Any]:
    """Start a program in a session of its own (on Windows a process group), so that Ctrl-C does not
    reach it.

    `environment`: variables added to those of this process. `streams`: the stream arguments of
    `subprocess.Popen`, and its `encoding`.
    """
    group: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    variables = os.environ | dict(environment or {})
    return subprocess.Popen(
        command, env=variables, start_new_session=True, creationflags=group, **streams
    )


def start_script(script: Path, **streams: Any) -> subprocess.Popen[bytes]:
    """Start a Python file with this process's import path; it must call `end_with_parent`.

    Its pipes are unbuffered, and the packages that contain it are not imported. Otherwise like
    `start_child`.
    """
    path = os.pathsep.join(map(str, sys.path))
    command = [sys.executable, "-P", str(script), str(os.getpid())]
    return start_child(command, {"PYTHONPATH": path}, bufsize=0, **streams)
