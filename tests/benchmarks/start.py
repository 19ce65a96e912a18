"""Times to start: the import, the command line, a server, and a worker with an included actor.

    python tests/benchmarks/start.py [--repeats 7]

Each is a process, in turns with its limit: a Python that does nothing (import, --help), that binds
a port (server), or that makes the drone's environment and steps it (worker).
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from _harness import CONFIG, benchmark, in_turns, timed
from kit.ports import free_port

BIND = (
    "import socket,sys,time; s=socket.create_server(('127.0.0.1',int(sys.argv[1]))); time.sleep(60)"
)
FIRST_STEP = """
from tmrl_like.envs.drone import DroneEnv
class StepsFirst(DroneEnv):
    has_stepped = False
    def step(self, action):
        if not self.has_stepped:
            self.has_stepped = True
            print("first step", flush=True)
        return super().step(action)
"""
BARE = (
    "from steps_first import StepsFirst as E; e = E(); e.reset(); [e.step(e.action_space.sample()) "
    "for _ in range(99)]"
)


def ends(*command):
    """Return the seconds from the start of a Python to its end."""
    program = [sys.executable, *command]
    return timed(lambda: subprocess.run(program, check=True, stdout=subprocess.DEVNULL))


def begins(home, command, has_begun):
    """Return the seconds from the start of a Python until `has_begun(process)`."""
    environment = os.environ | {"TMRL_LIKE_HOME": home, "PYTHONPYCACHEPREFIX": home}
    environment["PYTHONPATH"] = os.pathsep.join((home, os.environ.get("PYTHONPATH", "")))
    # the first run compiles the modules, as an installation does
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    program, pipe = [sys.executable, *command], subprocess.PIPE
    started = time.perf_counter()
    with subprocess.Popen(program, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            while not has_begun(process):
                if process.poll() is not None:
                    sys.exit(process.stderr.read())
                if time.perf_counter() - started > 20:
                    sys.exit(f"{command} does not begin")
            return time.perf_counter() - started
        finally:
            process.terminate()


def listens(port, process):
    """Whether the port accepts a connection; otherwise, wait for a moment."""
    try:
        socket.create_connection(("127.0.0.1", port), 0.5).close()
        return True
    except OSError:
        time.sleep(0.002)
        return False


def steps(process):
    return process.stdout.readline().strip() == "first step"


def measure(options):
    found = in_turns(
        3 * options.repeats,
        bare=partial(ends, "-c", "pass"),
        package=partial(ends, "-c", "import tmrl_like"),
        help=partial(ends, "-m", "tmrl_like", "-h"),
    )
    yield {
        "what": "`import tmrl_like`, s",
        "ours": found["package"],
        "limit": found["bare"],
        "goal": "0.05 more",
    }
    yield {
        "what": "`tmrl-like --help`, s",
        "ours": found["help"],
        "limit": found["bare"],
        "goal": "0.3 more",
    }
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "steps_first.py").write_text(FIRST_STEP)
        port = free_port()
        served = ["-m", "tmrl_like", "server", str(CONFIG), f"--server.port={port}"]
        server = partial(begins, home, served, partial(listens, port))
        first_s = server()  # the first start makes the keys
        bind = partial(begins, home, ["-c", BIND, str(port)], partial(listens, port))
        found = in_turns(options.repeats, ours=server, limit=bind)
        yield {
            "what": "server, until it accepts connections, s",
            **found,
            "goal": 0.7,
            "the first time": first_s,
        }
        work = [
            "-m",
            "tmrl_like",
            "worker",
            str(CONFIG),
            "--env.class_path=steps_first.StepsFirst",
            "--server.port=1",
        ]
        worker = partial(begins, home, work, steps)
        first_s = worker()  # the first start compiles the modules
        bare = partial(begins, home, ["-c", BARE], steps)
        found = in_turns(options.repeats, ours=worker, limit=bare)
    yield {
        "what": "worker, until its first step, s",
        **found,
        "goal": 0.5,
        "the first time": first_s,
    }


if __name__ == "__main__":
    benchmark(__doc__, measure, repeats=7, quick={"repeats": 1})
