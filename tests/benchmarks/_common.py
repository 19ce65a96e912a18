"""What the benchmarks share: `--quick`, processes that end with the run, medians, the last line as a JSON object."""

from __future__ import annotations

import argparse
import faulthandler
import json
import multiprocessing
import os
import platform
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS))  # what the tests share, scripts take from there as well
CONFIG = TESTS.parent / "config" / "drone.yaml"
SPAWN = multiprocessing.get_context("spawn")
_QUICK_LIMIT_S = 55.0


class Options(argparse.ArgumentParser):
    """A script's options; `--quick` takes other defaults, so that the script ends within a minute, or is ended then."""

    def __init__(self, doc: str | None, **quick: Any) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._quick = quick
        self.add_argument("--quick", action="store_true", help="small figures within a minute: does the script run?")

    def parse(self) -> argparse.Namespace:
        if "--quick" in sys.argv[1:]:
            self.set_defaults(**self._quick)
            taken_s = time.time() - psutil.Process().create_time()
            timer = threading.Timer(_QUICK_LIMIT_S - taken_s, _give_up)
            timer.daemon = True
            timer.start()
        return self.parse_args()


def _give_up() -> None:
    """Say where each thread is, and end this process with its children."""
    print(f"not at its end after {_QUICK_LIMIT_S:g} s", file=sys.stderr, flush=True)
    faulthandler.dump_traceback()
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(1)


class Part:
    """A process that calls `target(*args, pipe)`, and is killed at the end; what it does not say ends the run."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self._name = target.__name__
        self.pipe, child = SPAWN.Pipe()
        self._process = SPAWN.Process(target=target, args=(*args, child), daemon=True)
        self._process.start()
        child.close()  # the part has the only other end: it is closed when the part has ended
        self.program = psutil.Process(self._process.pid)

    def tell(self, word: str, *arguments: Any) -> None:
        self.pipe.send((word, *arguments))

    def hear(self, within_s: float = 120.0) -> Any:
        """Its next word. SystemExit: it has ended, or says nothing."""
        try:
            if self.pipe.poll(within_s):
                return self.pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join(10)
        how = f"ended with exit code {self._process.exitcode}" if not self._process.is_alive() else "does not answer"
        sys.exit(f"{self._name} {how}")

    def ask(self, word: str, *arguments: Any) -> Any:
        self.tell(word, *arguments)
        return self.hear()

    def cpu_s(self) -> float:
        return sum(self.program.cpu_times()[:2])

    def rss_mb(self) -> float:
        return self.program.memory_info().rss / 1e6

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.join(10)


def run_server(options: dict[str, Any], pipe: Any) -> None:
    """A part that is a server, and says its port."""
    from tmrl_like.networking import Server

    with Server(**{"port": 0, "host": "127.0.0.1", **options}) as server:
        pipe.send(server.address[1])
        pipe.recv()


def wait_for(condition: Callable[[], Any], what: str, within_s: float = 120.0) -> Any:
    """What it returns once that is true. SystemExit: it does not come."""
    until = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > until:
            sys.exit(f"{what}: not within {within_s:g} s")
        time.sleep(0.05)
    return found


@contextmanager
def two_hops() -> Iterator[tuple[socket.socket, socket.socket]]:
    """What goes into the first comes out of the second, over two hops of plain TCP, through a thread."""
    with socket.create_server(("127.0.0.1", 0)) as last, socket.create_server(("127.0.0.1", 0)) as middle:

        def pass_on() -> None:
            with socket.create_connection(last.getsockname()) as out, middle.accept()[0] as source:
                out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while data := source.recv(1 << 20):
                    out.sendall(data)

        threading.Thread(target=pass_on, daemon=True).start()
        with socket.create_connection(middle.getsockname()) as begin, last.accept()[0] as end:
            yield begin, end


def median(values: list[float]) -> float:
    return statistics.median(values)


def timed(call: Callable[[], Any]) -> float:
    """Seconds."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def repeat(times: int, *calls: Callable[[], float]) -> list[list[float]]:
    """Call each of `calls` in turn, `times` times: A B A B …; returns each one's results."""
    results: list[list[float]] = [[] for _ in calls]
    for _ in range(times):
        for result, call in zip(results, calls, strict=True):
            result.append(call())
    return results


def peer_has(python: str | None, package: str) -> bool:
    """Whether that Python has the package that is compared with; if not, a line says so."""
    if python is None:
        print(f"{package} is not measured: --peer names a Python that has it", flush=True)
    return python is not None


def make_room_for_links(links: int) -> None:
    """Let this process have so many links over zmq: descriptors for all, and one context, whose threads they share."""
    import zmq

    from tmrl_like.transport.base import raise_descriptor_limit

    class Shared(zmq.Context):  # type: ignore[type-arg]
        def term(self) -> None:
            """Each link ends the context that it made; here it is everybody's."""

    raise_descriptor_limit()
    shared = Shared()
    shared.max_sockets = 16 * links + 100
    zmq.Context = lambda: shared  # type: ignore[assignment,misc]


def finish(result: dict[str, Any]) -> None:
    """Print the result: readable lines, then one JSON object."""
    result = {"machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", **result}
    for name, value in result.items():
        print(f"{name:58} {value:,.4g}" if isinstance(value, float) else f"{name:58} {value}")
    print(json.dumps(result))
