"""From a key in a browser to the robot: page, server, link process and control loop, on loopback.

    python tests/benchmarks/takeover.py [--presses 100] [--time-step 0.05]

A headless Chromium presses a key; the action is there when `env.step` gets it. Beside it the time from the same
message, sent by a script without a browser, and the part of both that is the control loop's: up to a time-step.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from _common import finish

from tmrl_like.base import clocks
from tmrl_like.networking import RolloutWorker, Server
from tmrl_like.page.app import Page
from tmrl_like.page.watcher import Watcher
from tmrl_like.testing.fakes import LinearActor
from tmrl_like.transport import KeyFolder, TransportOptions, addresses_of, connect_to_one
from tmrl_like.wire import messages as m
from tmrl_like.worker.options import WorkerOptions

sys.path.append(str(Path(__file__).parents[1] / "page"))

from chromium import PROGRAM, Chromium


class Clocked(gymnasium.Env[Any, Any]):
    """Real time and nothing in it; notes when it gets a full deflection, and when none."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    time_step_s = 0.05
    pressed, released, pressed_at = threading.Event(), threading.Event(), 0.0

    def __init__(self) -> None:
        self._due = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._due = time.perf_counter()
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action[0] == 1.0 and not self.pressed.is_set():
            Clocked.pressed_at = time.perf_counter()
            self.pressed.set()
        elif action[0] != 1.0:
            self.released.set()
        self._due = max(self._due + self.time_step_s, time.perf_counter())
        time.sleep(max(0.0, self._due - time.perf_counter()))
        return np.zeros(2, np.float32), 0.0, False, False, {}


def delays_s(number: int, press: Callable[[], object], release: Callable[[], object]) -> list[float]:
    """From the press to the environment, of each."""
    found = []
    for _ in range(number):
        time.sleep(random.uniform(0.0, 2 * Clocked.time_step_s))
        Clocked.pressed.clear()
        begun = time.perf_counter()
        press()
        assert Clocked.pressed.wait(10), "the action never came"
        found.append(Clocked.pressed_at - begun)
        Clocked.released.clear()
        release()
        assert Clocked.released.wait(10)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presses", type=int, default=100)
    parser.add_argument("--time-step", type=float, default=0.05)
    arguments = parser.parse_args()
    Clocked.time_step_s = arguments.time_step
    result: dict[str, Any] = {"time-step": f"{1e3 * arguments.time_step:g} ms", "presses": arguments.presses}
    with tempfile.TemporaryDirectory() as folder, Server(0, keys_dir=Path(folder) / "keys") as server:
        keys, port = KeyFolder(Path(folder) / "keys"), server.address[1]
        where = {"server_port": port, "keys_dir": keys.path, "name": "arm", "model_path": None}
        options = WorkerOptions(takeover_from_page=True)
        with RolloutWorker(Clocked, LinearActor, options=options, **where) as worker:
            threading.Thread(target=worker.run, kwargs={"verbose": False}, daemon=True).start()
            link = connect_to_one("zmq", addresses_of("127.0.0.1", port), "", keys, TransportOptions())
            watcher = Watcher(link, "here", {"title": "benchmark", "asked_ratio": None}, (), may_drive=True)
            with Page(watcher, port=0) as page:
                while not (watcher.session.connected and worker.wait_connected(60)):
                    time.sleep(0.05)

                def says(*held: str, gives_back: bool = False) -> Callable[[], None]:
                    return lambda: watcher.drive(m.Drive("arm", 1, clocks.up_s(), held, gives_back))

                _add(result, "script to env.step", delays_s(arguments.presses, says("right"), says()))
                says(gives_back=True)()
                if PROGRAM is not None:
                    with Chromium(page.url, Path(folder) / "profile") as browser:
                        button = "$('takeover').children[1]"
                        browser.wait_for("typeof run !== 'undefined' && run !== null && !$('takeover').hidden")
                        browser.wait_for(f"!{button}.disabled")
                        browser.value(f"{button}.click()")
                        _add(
                            result,
                            "key in Chromium to env.step",
                            delays_s(
                                arguments.presses,
                                lambda: browser._call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight"),
                                lambda: browser._call("Input.dispatchKeyEvent", type="keyUp", key="ArrowRight"),
                            ),
                        )
            worker.stop()
    finish(result)


def _add(result: dict[str, Any], name: str, found: list[float]) -> None:
    for percent in (50, 95, 100):
        result[f"{name}, {percent}th percentile (ms)"] = float(np.percentile(found, percent)) * 1e3


if __name__ == "__main__":
    main()
