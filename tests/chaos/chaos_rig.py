"""A pipeline to break: its parts on this machine, numbered samples, and a ledger of them."""

import contextlib
import math
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import torch
from house import with_worker_options
from kit.fakes import CountingAgent, LinearActor, ListMemory
from kit.ports import free_port
from kit.waiting import until
from link_proxy import LinkProxy
from numbered_samples import NUMBERED_SPACES, Ledger, NumberedEnv, audit, counter, produced

from tmrl_like.base.functional import partial
from tmrl_like.base.processes import is_alive
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.engine.options import EngineOptions
from tmrl_like.networking import RolloutWorker, Server, Trainer
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.transport import KeyFolder

IMPORTED_ONCE = [
    "kit.fakes",
    "tmrl_like.server.server",
    "tmrl_like.trainer.trainer",
    "tmrl_like.worker.worker",
]
PERIOD_S = 0.01
RUN = "chaos"
MANY = [pytest.mark.chaos, pytest.mark.timeout(1800)]  # repetitions, in `make chaos` alone


def counts(short, zmq, tlspyo):
    """Parametrise a test: `short` repetitions by default (0: not run), many over each transport in
    `make chaos`.
    """
    few = [pytest.param("zmq", short, id="zmq-short")] if short else []
    return pytest.mark.parametrize(
        ("transport", "count"),
        [
            *few,
            pytest.param("zmq", zmq, id="zmq-full", marks=MANY),
            pytest.param("tlspyo", tlspyo, id="tlspyo-full", marks=MANY),
        ],
    )


class LedgerMemory(Ledger, ListMemory):
    """A small memory to train on, with a record of all its samples."""


@dataclass(frozen=True)
class Place:
    """The location of a pipeline: all that a part needs in order to run in its own process."""

    transport: str
    folder: Path
    port: int
    engine: EngineOptions | None = None

    def dial(self, port=None):
        return {
            "server_ip": "127.0.0.1",
            "server_port": port or self.port,
            "transport": self.transport,
            "keys_dir": self.keys,
        }

    @property
    def keys(self):
        return self.folder / "keys"

    @property
    def tally(self):
        return self.folder / "tally"

    @property
    def appended(self):
        return self.folder / "appended"

    @property
    def checkpoint(self):
        return self.folder / "checkpoint"

    def make_worker(self, number, port=None, env=None, **options):
        env_cls = partial(
            NumberedEnv, tally=self.tally, worker=number, **{"period_s": PERIOD_S} | (env or {})
        )
        options = {"name": f"w{number}", "model_path": None} | options
        return RolloutWorker(
            env_cls, LinearActor, **self.dial(port), **with_worker_options(options)
        )

    def make_trainer(self, port=None, training=None, **options):
        fields = {
            "env_cls": NUMBERED_SPACES,
            # the store keeps as many samples
            "memory_cls": partial(LedgerMemory, batch_size=2, memory_size=10**7),
            "training_agent_cls": CountingAgent,
            "epochs": math.inf,
            "rounds": 1,
            "steps": 10,
            "update_model_interval": 5,
            "update_buffer_interval": 1,
            "sleep_between_buffer_retrieval_attempts": 0.05,
            "max_training_steps_per_env_step": 0.2,
        } | (training or {})
        options = {
            "name": "trainer",
            "sinks": [],
            "model_path": None,
            "checkpoint_path": None,
            "policies_path": None,
            "metrics_path": self.folder / "metrics.jsonl",
        } | options
        return Trainer(
            partial(TrainingOffline, **fields), **self.dial(port), connect=self.engine, **options
        )

    def make_server(self):
        return Server(
            self.port,
            host="127.0.0.1",
            transport=self.transport,
            keys_dir=self.keys,
            engine=self.engine,
        )


def serve(place):
    with place.make_server() as server:
        server.serve_forever()


def work(place, number, options):
    torch.set_num_threads(1)
    with place.make_worker(number, **options) as worker:
        note_appended(worker, place.appended)
        worker.run(verbose=False)


def note_appended(worker, folder):
    """Count samples after `append` has returned, in files as `NumberedEnv` counts those
    produced.
    """
    append = worker.loop.samples.append
    counters = {}

    def append_and_count(sample, *args, **kwargs):
        append(sample, *args, **kwargs)
        worker_number, incarnation, number = map(int, sample[1])
        path = folder / f"{worker_number}-{incarnation}.count"
        if path not in counters:
            folder.mkdir(exist_ok=True)
            counters[path] = counter(path)
        counters[path][:] = (number + 1).to_bytes(8, "little")

    worker.loop.samples.append = append_and_count


def train(place, options):
    torch.set_num_threads(1)
    with place.make_trainer(**options) as trainer:
        trainer.run()


class Part:
    """Runs a function in its own process, which can be killed, frozen and restarted. Use it as a
    context manager.

    Where the system can fork, the process is forked from one that has already imported the package
    (and torch), so that it is up within 0.1 s. Kill and freeze affect only the process itself, not
    its children; leaving the context ends all of them.
    """

    def __init__(self, log, run, *arguments):
        method = (
            "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        )
        self._context = multiprocessing.get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload(IMPORTED_ONCE)
        self._run = (dict(os.environ), log, run, arguments)
        self._family = set()  # all processes of this part that were ever seen
        self.start()

    def start(self):
        """Start the process (again). Return at once; it may not be ready yet."""
        self._process = self._context.Process(target=run_part, args=self._run)
        self._process.start()
        self._main = psutil.Process(self._process.pid)

    @property
    def alive(self):
        return self._process.is_alive()

    @property
    def pid(self):
        return self._main.pid

    def kill(self):
        self.children()
        self._process.kill()
        self._process.join(5.0)

    def restart(self):
        self.kill()
        self.start()

    def freeze(self):
        self._main.suspend()

    def thaw(self):
        self._main.resume()

    def rss_bytes(self):
        """Return the resident memory of the process and its children."""
        return sum(process.memory_info().rss for process in (self._main, *self.children()))

    def children(self):
        """Return the child processes that still run, even after the process itself was killed."""
        if self.alive:
            self._family.update(self._main.children(recursive=True))
        return [process for process in self._family if is_alive(process)]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.kill()
        for process in self.children():
            process.kill()
        psutil.wait_procs(self._family, 5.0)


def run_part(environment, log, run, arguments):
    """Run a part in its process: take over environment and log, and end when the parent ends."""
    os.environ.clear()  # drop the environment of the process that all parts are forked from
    os.environ.update(environment)
    with log.open("ab", buffering=0) as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    threading.Thread(target=end_with_parent, daemon=True).start()
    run(*arguments)


def end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


class Rig:
    """A pipeline with parts as threads of the test, as processes, or both. All of them end with
    `stack`.
    """

    def __init__(self, transport, folder, stack, engine=None):
        folder.mkdir(exist_ok=True)
        self.place = Place(transport, folder, free_port(), engine)
        self._stack = stack
        self.workers = []
        self._runs = []
        self._trainings = {}
        KeyFolder(self.place.keys).server_keys()  # before several parts make them at the same time

    # threads of the test

    def server(self):
        return self._stack.enter_context(self.place.make_server())

    def worker(self, number, **options):
        worker = self._stack.enter_context(self.place.make_worker(number, **options))
        self.workers.append(worker)
        self._runs.append(self._start(worker.run, verbose=False))
        return worker

    def trainer(self, **options):
        trainer = self._stack.enter_context(self.place.make_trainer(**options))
        self._trainings[trainer] = self._start(trainer.run)
        return trainer

    def trains(self, trainer):
        return self._trainings[trainer].is_alive()

    def _start(self, call, *args, **kwargs):
        thread = threading.Thread(target=call, args=args, kwargs=kwargs, daemon=True)
        thread.start()
        return thread

    # processes

    def server_part(self, port=None):
        return self._part(serve, replace(self.place, port=port or self.place.port))

    def worker_part(self, number, **options):
        return self._part(work, self.place, number, options)

    def trainer_part(self, **options):
        return self._part(train, self.place, {"checkpoint_path": self.place.checkpoint} | options)

    def _part(self, *run):
        return self._stack.enter_context(Part(self.place.folder / f"{run[0].__name__}.log", *run))

    def proxy(self):
        return self._stack.enter_context(LinkProxy("127.0.0.1", self.place.port))

    # results

    def produced(self):
        return produced(self.place.tally)

    def appended(self):
        """Return how many samples were appended, for workers in their own processes."""
        return produced(self.place.appended)

    def arrived(self, trainer):
        return len(trainer.training.memory.rows())

    def wait_for_samples(self, trainer, more=1, within_s=20.0):
        """Wait until `more` new samples are in the memory."""
        wanted = self.arrived(trainer) + more
        wait_until(lambda: self.arrived(trainer) >= wanted, within_s, "samples arrive")

    def succeed(self, trainer, more=1, within_s=20.0):
        """Kill the trainer's part; return its successor, which has the stored samples, once new
        samples arrive.
        """
        trainer.kill()
        last = self.trainer(checkpoint_path=self.place.checkpoint)
        self.wait_for_samples(last, more, within_s)
        return last

    def settle(self, trainer, within_s=60.0, made=None):
        """Stop the workers, wait until all that they produced has arrived (for processes: all that
        they had appended), and return the audit.

        `made`: number of samples of each (worker, incarnation), where other workers than the rig's
        make them.
        """
        for worker in self.workers:
            worker.stop()
        for run in self._runs:
            run.join(20)
            assert not run.is_alive(), "a worker does not stop"
        made = made or self.produced() | self.appended()
        with contextlib.suppress(AssertionError):  # the audit will name what is missing
            wait_until(
                lambda: self.arrived(trainer) >= sum(made.values()), within_s, "everything arrives"
            )
        time.sleep(0.5)  # time for duplicates to arrive
        trainer.link.session.check()
        return audit(trainer.training.memory.rows(), made)


def link_of(worker):
    """Return the link process of a worker (a `Part` or a process), or None."""
    for child in worker.children():
        with contextlib.suppress(psutil.Error):  # the child has just ended
            if "link_process" in " ".join(child.cmdline()):
                return child
    return None


def wait_until(condition, within_s, what):
    """Wait for a condition; return how long it took, in seconds."""
    started = time.monotonic()
    until(condition, what, within_s)
    return time.monotonic() - started


def wait_for_checkpoint(place):
    """Wait until the trainer has written another checkpoint."""
    before = checkpoint_of(place)
    until(lambda: checkpoint_of(place) != before, "a checkpoint")


def checkpoint_of(place):
    """Return the number of the newest checkpoint, or 0."""
    return max((int(path.name[11:]) for path in place.checkpoint.glob("checkpoint-*")), default=0)


def all_at_once(*calls):
    """Run calls in parallel until all have ended; raise the error of the first that failed."""
    with ThreadPoolExecutor(len(calls)) as threads:
        running = [threads.submit(call) for call in calls]
    for each in running:
        each.result()


SMALL = OutboxOptions(max_bytes=2 << 20, window_bytes=1 << 20)
