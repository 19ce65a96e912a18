"""The faults of docs/reliability.md, given to tmrl 0.7.1: the column of that name, kept in tests/peer_faults.json.

    python tests/benchmarks/peer_faults.py --peer PYTHON [--only NAME]

PYTHON is that of a virtual environment with tmrl==0.7.1, which `pip install --no-deps` installs without what only the
game needs, and torch, gymnasium, rtgym, tlspyo, pandas, wandb, requests, pyinstrument, opencv-python-headless and mss.
A home folder of its own, with the configuration that tmrl documents, is made in a temporary folder. The parts are those
of `_peer_parts.py`: 100 numbered samples a second, episodes of 20, a checkpoint after each 50 training steps, one
training step a sample, no TLS, as is its default. A part that is killed is killed with its child process, which holds
its connection. Counts are of the trainer's memory when nothing more arrives. POSIX only; a full disk needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from _harness import Row, benchmark, timed, wait_for
from kit.ports import free_ports
from link_proxy import LinkProxy
from small_disk import small_disk

PARTS = Path(__file__).with_name("_peer_parts.py")
PASSWORD, HEADER = "a-password-of-this-trial", 12
PASSWORDS = {"without": "x" * len(PASSWORD), "with": PASSWORD}
Process = subprocess.Popen[bytes]


class Run:
    """Parts of tmrl in a folder of their own; all of them end with it."""

    def __init__(self, peer: str, folder: Path) -> None:
        self.peer, self.folder = peer, folder
        self.port, self.server_port, self.trainer_port, *self.worker_ports = free_ports(8)
        self.checkpoint = folder / "checkpoint.tcpt"
        self.parts: list[Process] = []
        self.log = folder / "log"  # of the newest part
        self.workers = 0
        home = folder / "TmrlData" / "config"
        home.mkdir(parents=True)
        (home / "config.json").write_text(PARTS.with_name("peer_config.json").read_text())

    def start(self, part: str, local_port: int, port: int | None = None, **options: Any) -> Process:
        told = {
            "folder": str(self.folder),
            "password": PASSWORD,
            "port": port or self.port,
            "local_port": local_port,
            "checkpoint": str(self.checkpoint),
            "numbers": 1,
            "first": self.workers * 100_000,
            **options,
        }
        environment = {**os.environ, "HOME": str(self.folder), "PEER_FAULTS": json.dumps(told), "OMP_NUM_THREADS": "1"}
        command = [self.peer, "-u", str(PARTS), part]
        self.log = self.folder / f"{part}-{len(self.parts)}.log"
        with self.log.open("wb") as log:
            started = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.parts.append(started)
        return started

    def server(self) -> Process:
        started = self.start("server", self.server_port)
        wait_for(lambda: can_dial(self.port), "the server")
        return started

    def trainer(self, port: int | None = None, **options: Any) -> Process:
        return self.start("trainer", self.trainer_port, port, **options)

    def worker(self, port: int | None = None, **options: Any) -> Process:
        started = self.start("worker", self.worker_ports[self.workers], port, **options)
        self.workers += 1
        return started

    def all(self, trainer_by: int | None = None, worker_by: int | None = None, **options: Any) -> dict[str, Process]:
        """Server, trainer and worker, once samples arrive."""
        parts = {"server": self.server(), "trainer": self.trainer(trainer_by, **options)}
        parts["worker"] = self.worker(worker_by, **options)
        self.flows()
        return parts

    def flows(self, more: int = 50) -> float:
        """Seconds until so many samples have arrived from now on."""
        before = len(self.memory())
        return timed(lambda: wait_for(lambda: len(self.memory()) > before + more, "samples"))

    def produced(self) -> list[list[str]]:
        """Number and action of each observation."""
        lines = [line for path in self.folder.glob("produced-*") for line in path.read_text().splitlines()]
        return [line.split() for line in lines]

    def memory(self) -> list[int]:
        path = self.folder / "memory"
        return json.loads(path.read_text()) if path.exists() else []

    def count(self) -> str:
        """Once the workers produce nothing more, and nothing more arrives."""
        (self.folder / "stop").touch()
        before = -1
        while before != (before := len(self.memory())):
            time.sleep(20)
        made, there = {int(number) for number, _ in self.produced()}, self.memory()
        return f"{len(made - set(there))} lost, {len(there) - len(set(there))} doubled of {len(made)} samples"

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def error(self) -> str:
        """The first that the newest part names; what Python says while it ends comes after."""
        found = re.search(r"^[\w.]+(Error|Exception)\b.*", self.said(), re.MULTILINE)
        return found[0][:160] if found else "no error"

    def close(self) -> None:
        for part in self.parts:
            kill(part)


def kill(part: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(part.pid, signal.SIGKILL)
    part.wait()


def can_dial(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 2).close()
        return True
    return False


def resident_mb(part: Process) -> float:
    """Of the processes of a part, together."""
    itself = psutil.Process(part.pid)
    return sum(process.memory_info().rss for process in (itself, *itself.children(recursive=True))) / 1e6


def ended(part: Process, seconds: float) -> str:
    """How it ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return f"ended with {part.wait(seconds)}"
    return f"still there after {seconds:.0f} s"


def head(size: int, password: str) -> bytes:
    """As tlspyo begins a frame."""
    return f"{size:<{HEADER}}{password}".encode()


def killed(run: Run, name: str, times: int) -> str:
    """One part, again and again."""
    part, waits = run.all()[name], []
    for _ in range(times):
        time.sleep(2)
        kill(part)
        if name == "trainer":
            (run.folder / "memory").unlink()  # what is there then is from its checkpoint
        part = getattr(run, name)()
        waits.append(f"{run.flows():.0f}")
    return f"{times} kills, {run.count()}; flowed after {', '.join(waits)} s"


def frozen(run: Run, name: str) -> str:
    """The link of one part, for 20 s, before it is cut."""
    with LinkProxy("127.0.0.1", run.port) as link:
        run.all(**{f"{name}_by": link.port})
        (log,) = run.folder.glob(f"{name}-*.log")
        link.freeze()
        time.sleep(20)
        noticed = "Lost connection" in log.read_text(errors="replace")
        link.cut()
        link.thaw()
        flowed_s = run.flows()
        return f"{run.count()}; noticed within 20 s: {noticed}; flowed {flowed_s:.0f} s after the cut"


def flipped(run: Run) -> str:
    """Bits on the worker's link."""
    with LinkProxy("127.0.0.1", run.port) as link:
        parts = run.all(worker_by=link.port)
        link.corrupt(20_000, seed=1)
        time.sleep(20)
        flips = link.corrupted
        link.corrupt(float("inf"))
        before = len(run.memory())
        time.sleep(60)
        came = len(run.memory()) - before
        ends = f"trainer {ended(parts['trainer'], 1)}, worker {ended(parts['worker'], 1)}"
        wrong = sum(number > 1e6 or number != int(number) for number in run.memory())
        return f"{flips} bits, {run.count()}; {came} came in the 60 s after; {ends}; {wrong} with another number"


def garbage(run: Run) -> str:
    server = run.all()["server"]
    before = resident_mb(server)
    for number in range(1000):
        content = os.urandom(200)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", run.port), 5) as sock:
            sock.sendall(content if number % 2 else head(len(content), PASSWORD) + content)
            sock.recv(1 << 16)
    return f"1,000 messages, {resident_mb(server) - before:+.0f} MB, {run.count()}"


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def pickled(run: Run) -> str:
    run.server()
    found = []
    for who, password in PASSWORDS.items():
        trace = run.folder / f"executed-{who}"
        content = pickle.dumps(Touch(trace))
        with socket.create_connection(("127.0.0.1", run.port), 5) as sock:
            sock.sendall(head(len(content), password) + content)
            time.sleep(3)
        found.append(f"{who} the password: {'executed' if trace.exists() else 'not executed'}")
    return "; ".join(found)


def silent(run: Run) -> str:
    run.server()
    with socket.create_connection(("127.0.0.1", run.port), 5) as sock:
        sock.recv(1 << 16)
        sock.settimeout(60)
        try:
            return f"dropped: {sock.recv(1)!r}"
        except TimeoutError:
            return "still connected after 60 s"


def announced(run: Run) -> str:
    """A terabyte, of which 16 MB come."""
    server = run.server()
    found = []
    for who, password in PASSWORDS.items():
        before, sent = resident_mb(server), 0
        with socket.create_connection(("127.0.0.1", run.port), 5) as sock:
            with contextlib.suppress(OSError):
                sock.sendall(head(10**12 - 1, password))
                for _ in range(16):
                    time.sleep(0.2)
                    sock.sendall(bytes(1 << 20))
                    sent += 1
            time.sleep(5)
            found.append(f"{who} the password: {sent} MB taken, server {resident_mb(server) - before:+.0f} MB")
    return "; ".join(found)


def disk_full(run: Run) -> str:
    disk = run.folder / "disk"
    with small_disk(disk) as fill:
        assert fill is not None, "run it as root"
        run.checkpoint = disk / "checkpoint.tcpt"
        run.server()
        run.worker()
        trainer = run.trainer()
        run.flows()
        time.sleep(3)
        fill()
        how = f"{ended(trainer, 30)}: {run.error()}"
        kill(trainer)
        again = run.trainer()  # does the one before hold?
        wait_for(lambda: re.search("Loaded checkpoint|Traceback", run.said()), "a start")
        kill(again)
        return f"{how}; the checkpoint before loads: {'Loaded checkpoint' in run.said()}"


def checkpoint_cut(run: Run) -> str:
    trainer = run.all()["trainer"]
    time.sleep(3)
    kill(trainer)
    os.truncate(run.checkpoint, run.checkpoint.stat().st_size - 1)
    again = run.trainer()
    wait_for(lambda: "Traceback" in run.said() or again.poll() is not None, "an end")
    return f"{ended(again, 15)}: {run.error()}"


def diverged(run: Run) -> str:
    parts = run.all(diverges=True)
    wait_for(lambda: any(action == "nan" for _, action in run.produced()), "NaN")
    time.sleep(10)
    actions = [action for _, action in run.produced()]
    ends = ", ".join(ended(parts[name], 1) for name in ("trainer", "worker"))
    return f"{actions.count('nan')} of {len(actions)} actions NaN; trainer and worker {ends}"


def environment(run: Run, fails: str) -> str:
    worker = run.all(fails=fails, fails_at=310)["worker"]
    wait_for(lambda: len(run.produced()) >= 310, "the fault")
    return f"worker {ended(worker, 30)}: {run.error()}; {run.count()}"


def trainer_away(run: Run) -> str:
    parts = run.all(numbers=16_000)
    before, made = resident_mb(parts["server"]), len(run.produced())
    os.killpg(parts["trainer"].pid, signal.SIGSTOP)
    time.sleep(30)
    grown, made = resident_mb(parts["server"]) - before, len(run.produced()) - made
    os.killpg(parts["trainer"].pid, signal.SIGCONT)
    return f"server {grown:+.0f} MB in 30 s with {made * 0.064:.0f} MB produced; {run.count()}"


def second_run(run: Run) -> str:
    run.all()
    ports = {"server": run.server_port, "trainer": run.trainer_port, "worker": run.worker_ports[0]}
    found = []
    for part, port in ports.items():
        second = run.start(part, port, first=900_000)
        found.append(f"second {part} {ended(second, 30)}: {run.error()}")
    return "; ".join([*found, run.count()])


TRIALS: dict[str, Callable[[Run], str]] = {
    "server killed": partial(killed, name="server", times=3),
    "trainer killed": partial(killed, name="trainer", times=5),
    "worker killed": partial(killed, name="worker", times=5),
    "worker's link frozen": partial(frozen, name="worker"),
    "trainer's link frozen": partial(frozen, name="trainer"),
    "flipped": flipped,
    "garbage": garbage,
    "pickled": pickled,
    "silent": silent,
    "announced": announced,
    "disk full": disk_full,
    "checkpoint cut": checkpoint_cut,
    "diverged": diverged,
    "environment raises": partial(environment, fails="raises"),
    "environment hangs": partial(environment, fails="hangs"),
    "trainer away": trainer_away,
    "second run": second_run,
}


def measure(options: Any) -> Iterator[Row]:
    for name in options.only if options.peer else ():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            run = Run(options.peer, Path(folder))
            try:
                yield {"what": name, "tmrl 0.7.1": TRIALS[name](run)}
            finally:
                run.close()


if __name__ == "__main__":
    benchmark(__doc__, measure, peer=None, only=list(TRIALS), quick={})
