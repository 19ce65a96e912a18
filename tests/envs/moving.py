"""Something that moves, says so in a file, and is stopped; also as a script that is killed.

python moving.py FILE [WHAT]
"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from typing import Any

from said import say

from tmrl_like.cli.stopping import Stopper
from tmrl_like.networking import RolloutWorker
from tmrl_like.testing.fakes import CountingEnv, LinearActor
from tmrl_like.worker.options import WorkerOptions

DEVICE = """
import signal, sys, time
def stop(number, frame):
    open(sys.argv[1], "a").write(f"stopped {time.monotonic()}\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
for line in sys.stdin:
    print("here", flush=True)
time.sleep(3600)
"""


class Moving(CountingEnv):
    """Moves from a reset on; its 20th step hangs if that is asked for. It may need a device's process."""

    def __init__(self, file: str, what: str = "", device: bool = False) -> None:
        super().__init__(step_s=0.01)
        self.file, self.what = file, what
        self.device: subprocess.Popen[bytes] | None = None
        if device:
            command = [sys.executable, "-S", "-c", DEVICE, file]
            self.device = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        say(file, "made")

    def reset(self, **options: Any) -> Any:
        say(self.file, "moves")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        if self.device is not None:
            self.device.stdin.write(b"step\n")
            if not self.device.stdout.readline():
                raise ConnectionError("the device is gone")
        if self.total_steps == 20 and self.what == "hangs":
            say(self.file, "hangs")
            time.sleep(3600)
        return super().step(action)

    def stop(self) -> None:
        say(self.file, "stopped")

    def close(self) -> None:
        say(self.file, "closed")


class Remote(Moving):
    """Can be stopped by another process as well."""

    def __init__(self, file: str, what: str = "") -> None:
        super().__init__(file, what)
        self.stop_from_outside = ("said.say", file, "stopped-from-outside")


class WithDevice(Moving):
    """Moves a device whose process stops it when it is asked to end."""

    def __init__(self, file: str, what: str = "") -> None:
        super().__init__(file, what, device=True)

    def close(self) -> None:
        super().close()
        if self.device is not None:
            self.device.kill()
            self.device.wait()
            self.device.stdin.close()
            self.device.stdout.close()


if __name__ == "__main__":
    import moving

    file, kind, what = sys.argv[1:]
    stopper = Stopper(supervised=False)
    make_env = partial(getattr(moving, kind), file, what)
    options = WorkerOptions(hang_timeout_s=60.0)
    with RolloutWorker(make_env, LinearActor, standalone=True, model_path=None, options=options) as worker:
        stopper.on_stop = worker.stop
        worker.run_episodes(nb_episodes=2 if what == "ends" else 1000)
