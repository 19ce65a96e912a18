"""How much code a sample passes: files, functions and threads between `SampleLog.append` and the memory.

    python tests/benchmarks/way.py [--list] [--seconds 3]

Server, trainer and a worker whose link lives in threads are one process, so that one trace sees all of it, once they
are under way. Counted is each function of the package, once, that is called while a sample or its packet is in hand:
appended, cut and sent, taken and passed on by the server, taken and read by the trainer, given to the memory and
confirmed. Not counted are ticks that carry nothing, signs of life, policies, metrics, the store, comprehensions, and
what the worker's environment and the memory do inside.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

from _common import Options, finish

import tmrl_like

PACKAGE = str(Path(tmrl_like.__file__).parent) + os.sep
ROOMS = ("delivery/", "session/", "wire/", "transport/", "server/", "worker/link", "types.py")
ROOMS += ("trainer/link", "trainer/sample_ages", "trainer/clocks", "replay/sample_check")
PARTS = {  # of the way: where it begins, and what it calls when there is a sample
    "SampleLog.append": "SampleLog.append",
    "Outbox.pump": "Source.encode",
    "ZmqServerLink.receive": "_ZmqLink._whole",
    "Relay.handle": "Relay._on_samples",
    "Ring.receive": "_ZmqLink._whole",
    "Conversation._dispatch": "Receiver.take",
    "TrainerLink.retrieve": "Receiver.is_rejected",
    "MemoryDataloading.append": "MemoryDataloading.append",
    "TrainerLink.confirm": "Receiver.confirm",
}
Function = tuple[str, str]  # file, qualified name


def is_counted(function: Function) -> bool:
    file, name = function
    return file.startswith(ROOMS) and not name.endswith(("comp>", "genexpr>"))


class _OfThread(threading.local):
    depth = 0  # of calls in a part of the way
    begun = ""  # its first function

    def __init__(self) -> None:
        self.called: set[Function] = set()  # by that part


class Trace:
    """Hears of each call in each thread that begins after `begin`.

    Attributes:
        is_on: whether it notes anything.
        functions: that were called, by the name of the thread.
        begun: the parts of the way that were seen.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.functions: dict[str, set[Function]] = defaultdict(set)
        self.begun: set[str] = set()
        self._own = _OfThread()

    def begin(self) -> None:
        threading.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        own = self._own
        if event == "call":
            name = frame.f_code.co_qualname
            if own.depth:
                own.depth += 1
            elif self.is_on and name in PARTS and frame.f_code.co_filename.startswith(PACKAGE):
                own.depth, own.begun, own.called = 1, name, set()
            if own.depth and frame.f_code.co_filename.startswith(PACKAGE):
                own.called.add((frame.f_code.co_filename.removeprefix(PACKAGE).replace(os.sep, "/"), name))
        elif event == "return" and own.depth:
            own.depth -= 1
            if not own.depth and any(name == PARTS[own.begun] for _, name in own.called):
                self.begun.add(own.begun)
                self.functions[threading.current_thread().name] |= own.called


def start_all(home: Path) -> None:
    """A server, a trainer and a worker, in threads that end with this process."""
    from tmrl_like import RolloutWorker, Server, Trainer, TrainingOffline, partial
    from tmrl_like.replay import ReplayMemory
    from tmrl_like.testing.fakes import CountingAgent, CountingEnv, LinearActor
    from tmrl_like.worker.options import WorkerOptions

    env_cls = partial(CountingEnv, episode_steps=50, step_s=0.002)
    server = Server(0, host="127.0.0.1", keys_dir=home / "keys")
    where: dict[str, Any] = {"server_ip": "127.0.0.1", "server_port": server.address[1], "keys_dir": home / "keys"}
    training_cls = partial(
        TrainingOffline,
        env_cls=env_cls,
        memory_cls=partial(ReplayMemory, batch_size=4, memory_size=100_000),
        training_agent_cls=CountingAgent,
        epochs=1,
        rounds=1,
        steps=1_000_000_000,
        update_model_interval=1_000_000_000,
        update_buffer_interval=1,
        max_training_steps_per_env_step=1.0,
        start_training=10,
    )
    files: dict[str, Any] = {"model_path": None, "policies_path": None, "metrics_path": None, "sinks": []}
    trainer = Trainer(training_cls, **where, **files, checkpoint_path=home / "checkpoint")
    options = WorkerOptions(link_process=False)
    worker = RolloutWorker(env_cls, LinearActor, None, **where, model_path=None, options=options)
    threading.Thread(target=trainer.run, daemon=True, name="training").start()
    threading.Thread(target=worker.run, daemon=True, name="worker").start()


def main() -> None:
    parser = Options(__doc__, seconds=1.0)
    parser.add_argument("--seconds", type=float, default=3.0, help="that are traced")
    parser.add_argument("--list", action="store_true", help="each thread's functions")
    options = parser.parse()
    trace = Trace()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # the trainer goes on writing
        os.environ["TMRL_LIKE_HOME"] = name
        trace.begin()
        start_all(Path(name))
        time.sleep(3.0)
        trace.is_on = True
        time.sleep(options.seconds)
        trace.is_on = False
    missing = PARTS.keys() - trace.begun
    if missing:
        sys.exit(f"no sample was seen in {', '.join(sorted(missing))}: have they other names now?")
    called = {thread: set(filter(is_counted, functions)) for thread, functions in trace.functions.items()}
    functions = set().union(*called.values())
    threads = sorted(thread for thread, own in called.items() if own)
    for thread in threads if options.list else ():
        print(f"{thread}:", *(f"    {file:32} {name}" for file, name in sorted(called[thread])), sep="\n")
    finish({"files": len({file for file, _ in functions}), "functions": len(functions), "threads": len(threads)})
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
