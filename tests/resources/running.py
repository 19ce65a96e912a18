"""What the tests of this folder share: looking at parts that run."""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
from chaos.chaos_rig import Rig, wait_until


@contextlib.contextmanager
def rig_in(folder: Path, transport: str = "zmq") -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(transport, folder / "rig", stack)


def link_of(process: psutil.Process) -> psutil.Process:
    """The link process of a worker, once it is there."""
    found: list[psutil.Process] = []

    def look() -> bool:
        with contextlib.suppress(psutil.Error):
            found[:] = [child for child in process.children() if "link_process" in " ".join(child.cmdline())]
        return len(found) == 1

    wait_until(look, 60.0, "the worker has a link")
    return found[0]


def said(rig: Rig, part: str, text: str) -> int:
    """How many lines of its log hold a text."""
    return sum(text in line for line in (rig.place.folder / f"{part}.log").read_text().splitlines())


def wait_for_more(rig: Rig, samples: int = 100) -> None:
    """Until the workers that are processes have appended some more."""
    wanted = sum(rig.appended().values()) + samples
    wait_until(lambda: sum(rig.appended().values()) > wanted, 60.0, "the worker appends")
