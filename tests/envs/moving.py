"""Environments that stand for moving hardware: they record in a file when they move and are
stopped; and a worker that drives one of them.
"""

import subprocess
import sys
import time
from functools import partial

from kit.fakes import CountingEnv, LinearActor
from said import say

from tmrl_like.cli.stopping import Stopper
from tmrl_like.networking import RolloutWorker
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
    """Moves from a reset on. If `what` is "hangs", it hangs after 20 steps."""

    def __init__(self, file, what=""):
        super().__init__(step_s=0.01)
        self.file, self.what = file, what
        say(file, "made")

    def reset(self, **options):
        say(self.file, "moves")
        return super().reset(**options)

    def step(self, action):
        if self.total_steps == 20 and self.what == "hangs":
            say(self.file, "hangs")
            time.sleep(3600)
        return super().step(action)

    def stop(self):
        say(self.file, "stopped")

    def close(self):
        say(self.file, "closed")


class Remote(Moving):
    """A moving environment that another process can stop as well."""

    @property
    def stop_from_outside(self):
        return "said.say", self.file, "stopped-from-outside"


class WithDevice(Moving):
    """Moves a device, whose process each step needs; that stops it when asked to end."""

    def __init__(self, file, what=""):
        command = [sys.executable, "-S", "-c", DEVICE, file]
        self.device = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        super().__init__(file, what)

    def step(self, action):
        self.device.stdin.write(b"step\n")
        if not self.device.stdout.readline():
            raise ConnectionError("the device is gone")
        return super().step(action)

    def close(self):
        super().close()
        with self.device as device:
            device.kill()


def drive(env_cls, file, what):
    """Drive as a worker does until a signal stops it; for a process of its own."""
    stopper = Stopper(supervised=False)
    options = WorkerOptions(hang_timeout_s=60.0)
    with RolloutWorker(
        partial(env_cls, file, what), LinearActor, standalone=True, model_path=None, options=options
    ) as worker:
        stopper.on_stop = worker.stop
        worker.run_episodes(nb_episodes=1000)
