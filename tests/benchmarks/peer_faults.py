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
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from _common import Options, peer_has
from kit.ports import free_ports
from link_proxy import LinkProxy
from small_disk import small_disk

PARTS = Path(__file__).with_name("_peer_parts.py")
PASSWORD, HEADER = "a-password-of-this-trial", 12


class Run:
    """Parts of tmrl in a folder of their own; all of them end with it."""

    def __init__(self, peer: str, folder: Path) -> None:
        self.peer, self.folder = peer, folder
        self.port, self.server_port, self.trainer_port, *self.worker_ports = free_ports(8)
        self.checkpoint = folder / "checkpoint.tcpt"
        self.parts: list[subprocess.Popen[bytes]] = []
        self.log = folder / "log"
        self.workers = 0
        home = folder / "TmrlData" / "config"
        home.mkdir(parents=True)
        (home / "config.json").write_text(PARTS.with_name("peer_config.json").read_text())

    def start(self, part: str, local_port: int, port: int | None = None, **options: Any) -> subprocess.Popen[bytes]:
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
        with open(self.folder / f"{part}-{len(self.parts)}.log", "wb") as log:
            self.log = Path(log.name)
            started = subprocess.Popen(
                [self.peer, "-u", str(PARTS), part], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.parts.append(started)
        return started

    def server(self) -> subprocess.Popen[bytes]:
        started = self.start("server", self.server_port)
        wait_for(lambda: can_dial(self.port), "the server")
        return started

    def trainer(self, port: int | None = None, **options: Any) -> subprocess.Popen[bytes]:
        return self.start("trainer", self.trainer_port, port, **options)

    def worker(self, port: int | None = None, **options: Any) -> subprocess.Popen[bytes]:
        started = self.start("worker", self.worker_ports[self.workers], port, **options)
        self.workers += 1
        return started

    def all(self, trainer_by: int | None = None, worker_by: int | None = None, **options: Any) -> list[Any]:
        """Server, trainer and worker, once samples arrive."""
        parts = [self.server(), self.trainer(trainer_by, **options), self.worker(worker_by, **options)]
        wait_for(lambda: len(self.memory()) > 100, "samples")
        return parts

    def produced(self) -> list[list[str]]:
        """Number and action of each observation."""
        lines = [line for path in self.folder.glob("produced-*") for line in path.read_text().splitlines()]
        return [line.split() for line in lines]

    def memory(self) -> list[int]:
        path = self.folder / "memory"
        return json.loads(path.read_text()) if path.exists() else []

    def count(self) -> str:
        """Once the workers produce nothing more and nothing more arrives."""
        (self.folder / "stop").touch()
        time.sleep(3)
        before, quiet, until = -1, 0, time.monotonic() + 90
        while quiet < 20 and time.monotonic() < until:
            now = len(self.memory())
            quiet = 0 if now != before else quiet + 1
            before = now
            time.sleep(1)
        made, there = {int(number) for number, _ in self.produced()}, self.memory()
        return f"{len(made - set(there))} lost, {len(there) - len(set(there))} doubled of {len(made)} samples"

    def close(self) -> None:
        for part in self.parts:
            kill(part)


def kill(part: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(part.pid, signal.SIGKILL)
    part.wait()


def can_dial(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 2).close()
        return True
    return False


def wait_for(holds: Callable[[], bool], what: str, seconds: float = 120) -> float:
    """Seconds until it held."""
    since = time.monotonic()
    while not holds():
        if time.monotonic() - since > seconds:
            raise TimeoutError(f"{what} did not come within {seconds:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - since


def resident_mb(part: subprocess.Popen[bytes]) -> float:
    """Of the processes of a part, together."""
    kilobytes = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(status.parent.name)) == part.pid:
                kilobytes += int(status.read_text().partition("VmRSS:")[2].split()[0])
    return kilobytes / 1024


def error_of(log: Path) -> str:
    """The first that it names; what Python says while it ends comes after."""
    found = re.search(r"^[\w.]+(Error|Exception)\b.*", log.read_text(errors="replace"), re.MULTILINE)
    return found[0][:160] if found else "no error"


def ended(part: subprocess.Popen[bytes], seconds: float) -> str:
    """How it ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return f"ended with {part.wait(seconds)}"
    return f"still there after {seconds:.0f} s"


def message(content: bytes, password: str = PASSWORD) -> bytes:
    """As tlspyo frames it."""
    return f"{len(content):<{HEADER}}{password}".encode() + content


def server_killed(run: Run) -> str:
    server, _, _ = run.all()
    waits = []
    for _ in range(3):
        kill(server)
        server = run.server()
        before = len(run.memory())
        waits.append(wait_for(lambda before=before: len(run.memory()) > before, "samples"))
        time.sleep(3)
    return f"3 kills, {run.count()}; flowed after {', '.join(f'{wait:.0f}' for wait in waits)} s"


def trainer_killed(run: Run) -> str:
    _, trainer, _ = run.all()
    for _ in range(5):
        time.sleep(2)
        kill(trainer)
        (run.folder / "memory").unlink()
        trainer = run.trainer()
        wait_for(lambda: len(run.memory()) > 0, "samples")
    return f"5 kills, {run.count()}"


def worker_killed(run: Run) -> str:
    _, _, worker = run.all()
    for _ in range(4):
        time.sleep(2)
        kill(worker)
        before = len(run.memory())
        worker = run.worker()
        wait_for(lambda before=before: len(run.memory()) > before + 50, "samples")
    kill(worker)
    return f"5 kills, {run.count()}"


def frozen(run: Run, of: str) -> str:
    with LinkProxy("127.0.0.1", run.port) as link:
        run.all(**{f"{of}_by": link.port})
        log = next(run.folder.glob(f"{of}-*.log"))
        link.freeze()
        time.sleep(20)
        noticed = "Lost connection" in log.read_text(errors="replace")
        link.cut()
        link.thaw()
        before = len(run.memory())
        wait = wait_for(lambda: len(run.memory()) > before + 50, "samples")
        return f"{run.count()}; noticed within 20 s: {noticed}; flowed {wait:.0f} s after the cut"


def worker_link_frozen(run: Run) -> str:
    return frozen(run, "worker")


def trainer_link_frozen(run: Run) -> str:
    return frozen(run, "trainer")


def flipped(run: Run) -> str:
    with LinkProxy("127.0.0.1", run.port) as link:
        _, trainer, worker = run.all(worker_by=link.port)
        link.corrupt(20_000, seed=1)
        time.sleep(20)
        flips = link.corrupted
        link.corrupt(float("inf"))
        before = len(run.memory())
        try:
            wait = f"flowed {wait_for(lambda: len(run.memory()) > before + 50, 'samples', 60):.0f} s after"
        except TimeoutError:
            wait = "no sample came in the 60 s after"
        ends = f"trainer {ended(trainer, 1)}, worker {ended(worker, 1)}"
        there = sum(number > 1e6 or number != int(number) for number in run.memory())
        return f"{flips} bits, {run.count()}; {wait}; {ends}; {there} samples with another number"


def garbage(run: Run) -> str:
    server, _, _ = run.all()
    before = resident_mb(server)
    for number in range(1000):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", run.port), 5) as sock:
            sock.sendall(os.urandom(200) if number % 2 else message(os.urandom(200)))
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
    for who, password in (("without", "x" * len(PASSWORD)), ("with", PASSWORD)):
        trace = run.folder / f"executed-{who}"
        with socket.create_connection(("127.0.0.1", run.port), 5) as sock:
            sock.sendall(message(pickle.dumps(Touch(trace)), password))
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
    server = run.server()
    found = []
    for who, password in (("without", "x" * len(PASSWORD)), ("with", PASSWORD)):
        before = resident_mb(server)
        sent = 0
        with socket.create_connection(("127.0.0.1", run.port), 5) as sock:
            with contextlib.suppress(OSError):
                sock.sendall(f"{10**12 - 1:<{HEADER}}{password}".encode())
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
        _, trainer, _ = run.all()
        log = run.folder / "trainer-1.log"
        time.sleep(3)
        fill()
        how = ended(trainer, 30)
        said = error_of(log)
        kill(trainer)
        again = run.trainer()  # does the one before hold?
        wait_for(lambda: any(word in run.log.read_text() for word in ("Loaded checkpoint", "Traceback")), "a start")
        loaded = "Loaded checkpoint" in run.log.read_text()
        kill(again)
        return f"{how}: {said}; the checkpoint before loads: {loaded}"


def checkpoint_cut(run: Run) -> str:
    _, trainer, _ = run.all()
    time.sleep(3)
    kill(trainer)
    os.truncate(run.checkpoint, run.checkpoint.stat().st_size - 1)
    again = run.trainer()
    wait_for(lambda: "Traceback" in run.log.read_text(errors="replace") or again.poll() is not None, "an end", 60)
    return f"{ended(again, 15)}: {error_of(run.log)}"


def diverged(run: Run) -> str:
    run.all(diverges=True)
    wait_for(lambda: any(action == "nan" for _, action in run.produced()), "NaN", 60)
    time.sleep(10)
    actions = [action for _, action in run.produced()]
    ends = ", ".join(ended(part, 1) for part in run.parts[1:])
    return f"{sum(action == 'nan' for action in actions)} of {len(actions)} actions NaN; trainer and worker {ends}"


def environment(run: Run, fails: str) -> str:
    _, _, worker = run.all(fails=fails, fails_at=310)
    wait_for(lambda: len(run.produced()) >= 310, "the fault")
    time.sleep(2)
    return f"worker {ended(worker, 30)}: {error_of(run.log)}; {run.count()}"


def environment_raises(run: Run) -> str:
    return environment(run, "raises")


def environment_hangs(run: Run) -> str:
    return environment(run, "hangs")


def trainer_away(run: Run) -> str:
    server, trainer, _ = run.all(numbers=16_000)
    before, made = resident_mb(server), len(run.produced())
    os.killpg(trainer.pid, signal.SIGSTOP)
    time.sleep(30)
    grown, made = resident_mb(server) - before, len(run.produced()) - made
    os.killpg(trainer.pid, signal.SIGCONT)
    return f"server {grown:+.0f} MB in 30 s with {made * 0.064:.0f} MB produced; {run.count()}"


def second_run(run: Run) -> str:
    _, trainer, _ = run.all()
    found = []
    for part, port in (("server", run.server_port), ("trainer", run.trainer_port), ("worker", run.worker_ports[0])):
        second = run.start(part, port, first=900_000)
        found.append(f"second {part} {ended(second, 30)}: {error_of(run.log)}")
    second = run.start("trainer", run.worker_ports[3])
    found.append(f"a trainer elsewhere {ended(second, 20)}, first {ended(trainer, 1)}")
    return "; ".join([*found, run.count()])


TRIALS: tuple[Callable[[Run], str], ...] = (
    server_killed,
    trainer_killed,
    worker_killed,
    worker_link_frozen,
    trainer_link_frozen,
    flipped,
    garbage,
    pickled,
    silent,
    announced,
    disk_full,
    checkpoint_cut,
    diverged,
    environment_raises,
    environment_hangs,
    trainer_away,
    second_run,
)


@contextlib.contextmanager
def a_run(peer: str) -> Iterator[Run]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = Run(peer, Path(folder))
        try:
            yield run
        finally:
            run.close()


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--peer", help="the Python that has tmrl")
    parser.add_argument("--only", choices=[trial.__name__ for trial in TRIALS], help="one trial (default: all)")
    asked = parser.parse()
    if not peer_has(asked.peer, "tmrl"):
        return
    for trial in TRIALS:
        if asked.only in (None, trial.__name__):
            with a_run(asked.peer) as run:
                try:
                    seen = trial(run)
                except (TimeoutError, OSError) as error:
                    seen = f"could not be tried: {error}; {error_of(run.log)}"
                print(f"{trial.__name__}: {seen}", flush=True)


if __name__ == "__main__":
    main()
