"""Trainers that learn as one, in processes that torchrun restarts."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
from chaos_rig import wait_until

PART = Path(__file__).with_name("rank_part.py")
RANKS = 2


class Torchrun:
    """The ranks of one training. Use it as a context manager, which ends all of them."""

    def __init__(self, place):
        self._log = (place.folder / "torchrun.log").open("ab")
        torchrun = ("torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
        about = (place.transport, place.folder, str(place.port))
        self._process = subprocess.Popen(
            [sys.executable, "-m", *torchrun, "--max-restarts=1000", PART, *about],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(map(str, (PART.parent, *PART.parents[1:3])))},
        )

    def ranks(self):
        found = []
        for process in psutil.Process(self._process.pid).children():
            try:
                if PART.name in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                pass
        return found

    def kill(self, rng):
        """Kill one rank; return how long the others survived, in seconds."""
        wait_until(lambda: len(self.ranks()) == RANKS, 60, "all ranks are there")
        ranks = self.ranks()
        rng.choice(ranks).kill()
        return wait_until(
            lambda: not any(rank.is_running() for rank in ranks), 60, "the others end"
        )

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        ranks = self.ranks()
        self._process.kill()
        for rank in ranks:
            rank.kill()
        psutil.wait_procs(ranks, 5.0)
        self._process.wait()
        self._log.close()
