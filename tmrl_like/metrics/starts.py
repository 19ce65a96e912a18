"""run.json: records each start of a run, with everything needed to repeat it, and how it ended."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

import tmrl_like
from tmrl_like.base.files import write_atomically

FILE = "run.json"

_KEPT = 100
_GIT_WITHIN_S = 5.0


StartFields: TypeAlias = Mapping[str, object]
"""Fields of a `Start` by name."""


class Start(msgspec.Struct, kw_only=True):
    """One start of a run's trainer. Unknown fields are empty.

    Attributes:
        time: when, ISO 8601 with the time zone.
        command: the command line.
        folder: the working folder.
        experiment: the experiment, as YAML; empty for a script.
        experiment_file: its path.
        task: the environment.
        tmrl_like: version of this package.
        packages: versions of the packages that are installed.
        python: version of Python.
        platform: system and machine.
        cpu: its model, and the number of cores.
        gpu: the GPU of the training.
        git_commit: of the working folder.
        ended: "done", "stopped", or "failed: …"; empty: still running, or killed.
    """

    time: str = ""
    command: str = ""
    folder: str = ""
    experiment: str = ""
    experiment_file: str = ""
    task: str = ""
    tmrl_like: str = ""
    packages: dict[str, str] = {}
    python: str = ""
    platform: str = ""
    cpu: str = ""
    gpu: str = ""
    git_commit: str = ""
    ended: str = ""


def describe_start(**known: object) -> Start:
    """Describe a start of this process now; `known` adds or replaces fields."""
    installed = [
        info.stem.rpartition("-") for place in sys.path for info in Path(place).glob("*.dist-info")
    ]
    start = Start(
        time=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        command=shlex.join(sys.orig_argv),
        folder=str(Path.cwd()),
        tmrl_like=tmrl_like.__version__,
        packages={name: version for name, _, version in sorted(installed)},
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=f"{_cpu()}, {os.cpu_count()}",
        git_commit=_git_commit(),
    )
    return msgspec.structs.replace(start, **known)


def read_starts(folder: Path) -> list[Start]:
    """Return the starts of the run in a folder, newest last; empty if they cannot be read."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=list[Start])
    except (OSError, msgspec.MsgspecError):
        return []


def write_starts(folder: Path, starts: list[Start]) -> None:
    """Write the newest hundred starts. Raises OSError if they cannot be written."""
    text = json.dumps(msgspec.to_builtins(starts[-_KEPT:]), indent=1, ensure_ascii=False)
    # a name that is not UTF-8 cannot be written as it is
    write_atomically(folder / FILE, text.encode(errors="replace"))


def _git_commit() -> str:
    """Return the commit of the working folder; empty without git or outside a repository.

    The repository may be untrusted: this starts none of its programs, as `git status` would.
    """
    # ValueError: what it says is not UTF-8
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        return subprocess.run(
            ["git", "rev-parse", "HEAD"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_GIT_WITHIN_S,
            check=True,
        ).stdout.strip()
    return ""


def _cpu() -> str:
    with contextlib.suppress(OSError):
        known = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if named := re.search(r"^model name\s*:\s*(.+)", known, re.MULTILINE):
            return named[1]
    return platform.processor() or platform.machine()
