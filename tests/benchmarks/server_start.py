"""How long `tmrl-like server` takes from its start to accepting connections.

    python tests/benchmarks/server_start.py [--repeats 7]

The floor is a bare Python that binds a port. Both are started as processes, in turn.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import finish, median, repeat

CONFIG = Path(__file__).parents[2] / "config" / "drone.yaml"
BARE = "import socket,sys,time; s=socket.create_server(('127.0.0.1',int(sys.argv[1]))); time.sleep(60)"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def seconds_until_accepting(command: list[str], port: int, home: str) -> float:
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, "TMRL_LIKE_HOME": home}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while time.perf_counter() - started < 20:
            try:
                socket.create_connection(("127.0.0.1", port), 0.5).close()
                return time.perf_counter() - started
            except OSError:
                time.sleep(0.002)
        raise TimeoutError(f"{command} does not listen")
    finally:
        process.terminate()
        process.wait(10)


def server(home: str) -> float:
    port = free_port()
    command = [sys.executable, "-m", "tmrl_like", "server", str(CONFIG), "--server.port", str(port)]
    return seconds_until_accepting(command, port, home)


def bare() -> float:
    port = free_port()
    return seconds_until_accepting([sys.executable, "-c", BARE, str(port)], port, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as home:
        first_s = server(home)  # makes the keys
        ours, floor = repeat(repeats, lambda: server(home), bare)
    finish(
        {
            "server_start_first_time_with_key_generation_s": first_s,
            "server_start_s": median(ours),
            "server_start_max_s": max(ours),
            "floor_bare_python_listening_s": median(floor),
            "ratio_to_floor": median(ours) / median(floor),
            "goal_s": 0.7,
        }
    )


if __name__ == "__main__":
    main()
