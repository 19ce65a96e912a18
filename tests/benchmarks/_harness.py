"""Shared by all benchmarks: options, turns, processes and peers, and the result as JSON.

A script defines what it sets up and what it times::

    def measure(options):
        times = in_turns(options.repeats, ours=memory.sample, limit=gather)
        yield {"what": "a batch of 256, s", **times, "goal": 1e-4}

    if __name__ == "__main__":
        benchmark(__doc__, measure, repeats=5, quick={"repeats": 1})

A row is a dict by column, of which `what` is the first. Each row is printed as it comes, a list in
it as its median and, in brackets, its smallest and largest value. The last line holds all rows in
JSON, with the machine, its load, the commit and the date. `--keep` writes it to figures/NAME.json,
from which `_page.py` makes the tables of docs/benchmarks.md. `--quick` uses other defaults, with
which the script ends within seconds and its figures mean nothing.
"""

import argparse
import contextlib
import faulthandler
import json
import logging
import multiprocessing
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from datetime import date
from pathlib import Path

import psutil

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS))  # so that scripts, too, can import what the tests share
CONFIG = TESTS.parent / "config" / "drone.yaml"
FIGURES = Path(__file__).with_name("figures")
SPAWN = multiprocessing.get_context("spawn")
PEERS = "tmrl 0.7.1", "peer"
QUICK_LIMIT_S = 55.0


def benchmark(doc, measure, *, quick, **defaults):
    """Run a script. Each of `defaults` becomes an option of its type; one that is a list of words
    takes any of them.
    """
    options = parse(doc, quick, defaults)
    load_before = os.getloadavg()[0]
    rows = []
    for row in measure(options):
        rows.append({column: summary(cell) for column, cell in row.items()})
        print("; ".join(f"{column} {text(cell)}" for column, cell in rows[-1].items()), flush=True)
    script = Path(sys.argv[0])
    result = {
        "command": " ".join([f"python tests/benchmarks/{script.name}", *sys.argv[1:]]),
        "machine": (
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        ),
        "load": f"{load_before:.1f} before, {os.getloadavg()[0]:.1f} after",
        "commit": git("describe", "--always", "--dirty"),
        "date": date.today().isoformat(),
        "rows": rows,
    }
    if options.keep:
        keep(script.stem, result)
    print(json.dumps(result))


def parse(doc, quick, defaults):
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="small figures within seconds: does the script run?"
    )
    parser.add_argument("--keep", action="store_true", help="write the figures that the page shows")
    for name, default in defaults.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, list):
            words = default if isinstance(default[0], str) else None
            parser.add_argument(
                flag, nargs="+", type=type(default[0]), choices=words, default=default
            )
        else:
            parser.add_argument(
                flag, type=str if default is None else type(default), default=default
            )
    if "--quick" in sys.argv[1:]:
        parser.set_defaults(**quick)
        faulthandler.dump_traceback_later(QUICK_LIMIT_S, exit=True)
    return parser.parse_args()


def summary(cell):
    """Return a cell in its stored form."""
    if isinstance(cell, list):
        return {
            "median": statistics.median(cell),
            "low": min(cell),
            "high": max(cell),
            "of": len(cell),
        }
    return cell


def text(cell):
    """Return a cell in its readable form."""
    if isinstance(cell, dict):
        middle = text(cell["median"])
        return (
            f"{middle} ({text(cell['low'])} to {text(cell['high'])})" if cell["of"] > 1 else middle
        )
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def keep(name, result):
    """Write a result in place of the previous one; figures of a peer that were not measured this
    time are kept.
    """
    file = FIGURES / f"{name}.json"
    before = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    of_peers = {
        row["what"]: {column: row[column] for column in PEERS if column in row} for row in before
    }
    rows = [row | of_peers.get(row["what"], {}) | row for row in result["rows"]]
    lines = json.dumps(result | {"rows": rows}, indent=1, ensure_ascii=False)
    file.write_text(lines + "\n", encoding="utf-8")


def git(*arguments):
    """Return git's output, or an empty string if the sources are not in a repository."""
    command = ["git", "-C", str(TESTS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


# -- turns -----------------------------------------------------------------------------------------


def in_turns(times, **calls):
    """Call each of `calls` in turn, `times` times: A B A B …; return the results of each."""
    results = {name: [] for name in calls}
    for _ in range(times):
        for name, call in calls.items():
            results[name].append(call())
    return results


def ratios(over, under):
    """Return the ratios turn by turn."""
    return [a / b for a, b in zip(over, under, strict=True)]


def timed(call):
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def rate(call, times):
    """Return how often a call runs in a second."""
    started = time.perf_counter()
    for _ in range(times):
        call()
    return times / (time.perf_counter() - started)


# -- processes -------------------------------------------------------------------------------------


class Part:
    """A process that calls `target(*args, pipe)`, and is killed at the end. A missing answer ends
    the whole run.
    """

    def __init__(self, target, *args):
        self._name = target.__name__
        self.pipe, child = SPAWN.Pipe()
        self._process = SPAWN.Process(target=target, args=(*args, child), daemon=True)
        self._process.start()
        child.close()  # now only the part holds this end, which closes when the part ends
        self.program = psutil.Process(self._process.pid)

    def tell(self, word, *arguments):
        self.pipe.send((word, *arguments))

    def hear(self, within_s=120.0):
        """Return the part's next answer.

        Raises:
            SystemExit: the part has ended, or does not answer within `within_s`.
        """
        try:
            if self.pipe.poll(within_s):
                return self.pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join(10)
        how = (
            f"ended with exit code {self._process.exitcode}"
            if not self._process.is_alive()
            else "does not answer"
        )
        sys.exit(f"{self._name} {how}")

    def ask(self, word, *arguments):
        self.tell(word, *arguments)
        return self.hear()

    def cpu_s(self):
        return sum(self.program.cpu_times()[:2])

    def rss_mb(self):
        return self.program.memory_info().rss / 1e6

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._process.kill()
        self._process.join(10)


class Parts(contextlib.ExitStack):
    """Parts that end together, and a temporary folder for their keys and files."""

    def __init__(self):
        super().__init__()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.keys = self.folder / "keys"

    def start(self, target, *args):
        return self.enter_context(Part(target, *args))

    def serve(self, **options):
        """Start a server; return its part and its port."""
        server = self.start(run_server, {"keys_dir": self.keys, **options})
        return server, server.hear()


class Peer:
    """Another package, in a process of its own Python, which answers each line with "answer
    NUMBER".
    """

    def __init__(self, python, script, *arguments, **environment):
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(script)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=os.environ | environment,
        )

    def ask(self, line):
        self._process.stdin.write(line + "\n")
        for answer in self._process.stdout:
            if answer.startswith("answer "):
                return float(answer.split()[1])
        sys.exit(f"the peer ended at {line!r}")

    def close(self):
        self._process.communicate()


def run_server(options, pipe):
    """Run a server as a part. It sends its port, and then the number of its packets whenever it is
    asked.
    """
    from tmrl_like.networking import Server

    with Server(**{"port": 0, "host": "127.0.0.1", **options}) as server:
        pipe.send(server.address[1])
        while pipe.recv():
            pipe.send(server.counters.packets)


def be_quiet():
    """Silence the reports of environment and worker, since overruns are counted here."""
    warnings.filterwarnings("ignore", message="Time-step timed out")
    logging.getLogger("tmrl_like").setLevel(logging.ERROR)


def link_to(port, keys):
    """Return a connection to the server at this port, with the keys of this folder."""
    from tmrl_like.transport import KeyFolder, connect

    return connect("zmq", "127.0.0.1", port, KeyFolder(keys))


def trainer_link(peer_link, spaces, receiver=None):
    """Connect a trainer; return its link."""
    from tmrl_like.trainer.trainer_link import TrainerLink

    link = TrainerLink(peer_link, "trainer", spaces, receiver)
    assert link.session.wait_connected(30), "the trainer does not connect"
    return link


def over_two_hops(size):
    """Return the seconds that bytes take over two hops of plain TCP with a thread between them."""
    buffer, got = bytearray(1 << 20), 0
    with (
        socket.create_server(("127.0.0.1", 0)) as last,
        socket.create_server(("127.0.0.1", 0)) as middle,
    ):

        def pass_on():
            with socket.create_connection(last.getsockname()) as out, middle.accept()[0] as source:
                out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while data := source.recv(1 << 20):
                    out.sendall(data)

        threading.Thread(target=pass_on, daemon=True).start()
        with socket.create_connection(middle.getsockname()) as begin, last.accept()[0] as end:
            started = time.perf_counter()
            threading.Thread(target=begin.sendall, args=(bytes(size),), daemon=True).start()
            while got < size:
                got += end.recv_into(buffer)
            return time.perf_counter() - started
