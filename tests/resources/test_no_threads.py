"""No thread or process can be started, initially or temporarily while parts run."""

import contextlib
import itertools
import math
import os
import signal
import threading
from pathlib import Path

import psutil
import pytest
from chaos.chaos_rig import wait_for_checkpoint
from kit.environments import calling
from kit.fakes import CountingEnv
from kit.waiting import until
from running import assert_settled, rig_in

from tmrl_like.cli import work
from tmrl_like.cli.stopping import Stopper
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.errors import EnvironmentFaultError, ShortageError

TINY = str(Path(__file__).parents[1] / "cli" / "tiny.yaml")


class Threads:
    """Limits the threads that this process may start from now on to `left`."""

    def __init__(self, monkeypatch):
        self.left = math.inf
        self.refused = 0
        start = threading.Thread.start

        def limited(thread):
            if self.left <= 0:
                self.refused += 1
                raise RuntimeError("can't start new thread")
            self.left -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.fixture
def threads(monkeypatch):
    return Threads(monkeypatch)


def make(rig, part):
    if part == "server":
        return rig.place.make_server()
    if part.startswith("worker"):
        return rig.place.make_worker(1, link_process="its link" in part)
    return rig.place.make_trainer(
        checkpoint_path=rig.place.checkpoint, policies_path=rig.place.folder / "policies"
    )


@pytest.mark.fault(
    "resources",
    "a part cannot start one of its threads",
    "it ends in one line, and leaves no thread, process or lock",
)
@pytest.mark.parametrize(
    ("part", "most"),
    [
        ("server", 7),
        ("trainer", 10),
        ("worker", 9),
        pytest.param("worker and its link", 3, marks=pytest.mark.long),
    ],
)
def test_a_part_has_all_its_threads_or_does_not_start(tmp_path, threads, part, most):
    with rig_in(tmp_path) as rig:
        before, children = set(threading.enumerate()), set(psutil.Process().children())
        for number in itertools.count():
            threads.left = number
            with contextlib.suppress(ShortageError):
                started = make(rig, part)
                break
            until(lambda: set(threading.enumerate()) <= before, "its threads have ended", 20.0)
            assert set(psutil.Process().children()) <= children
        threads.left = math.inf
        started.close()
        assert 0 < number <= most


@pytest.mark.fault(
    "resources",
    "no thread can be started while parts run",
    "none is needed: samples, policies and checkpoints go on",
)
def test_parts_that_run_need_no_further_thread(tmp_path, threads):
    with rig_in(tmp_path) as rig:
        rig.server()
        trainer = rig.trainer(checkpoint_path=rig.place.checkpoint)
        rig.worker(1, link_process=False)
        threads.left = 0
        rig.wait_for_samples(trainer, 20)
        wait_for_checkpoint(rig.place)
        assert_settled(rig, trainer)
    assert not threads.refused


@pytest.mark.fault(
    "resources",
    "an environment hangs, and no thread can be started",
    "one line; it is made again once there is one",
)
def test_an_environment_that_hangs_is_made_again_when_there_is_a_thread(
    threads, monkeypatch, caplog
):
    hanging, waits = threading.Event(), []
    env = SupervisedEnv(CountingEnv, hang_timeout_s=0.1)

    def wait(backoff_s):
        waits.append(backoff_s)
        # more than the number of consecutive faults that are tolerated
        threads.left = math.inf if len(waits) > 7 else 0

    monkeypatch.setattr(env.stopping, "wait", wait)
    monkeypatch.setattr(env.env, "reset", lambda **options: hanging.wait())
    threads.left = 0
    with pytest.raises(EnvironmentFaultError, match="hangs") as fault:
        env.run(env.reset)
    env.rebuild(fault.value)
    assert env.run(env.reset)
    hanging.set()
    env.close()
    assert len(waits) == 8
    assert caplog.text.count("the thread tmrl-control cannot be started") == 1


@pytest.mark.fault(
    "resources",
    "an environment cannot start a thread",
    "one line without a traceback; it is made again for as long as it takes",
)
def test_an_environment_without_a_thread_is_away_and_not_broken(threads, monkeypatch, caplog):
    env = SupervisedEnv(calling(lambda env: threading.Thread(target=int).start()))
    monkeypatch.setattr(env.stopping, "wait", lambda backoff_s: False)
    env.run(env.reset)
    threads.left = 0
    for _ in range(10):  # more than the number of consecutive faults that are tolerated
        with pytest.raises(EnvironmentFaultError, match="can't start new thread") as fault:
            env.run(lambda: env.step(env.env.action_space.sample()))
        env.rebuild(fault.value)
    env.close()
    assert "Traceback" not in caplog.text


@pytest.mark.fault("resources", "a part without a thread is told to stop", "it stops")
@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGTERM")
def test_a_part_without_a_thread_stops_all_the_same(threads, signals_stay):
    stopped = threading.Event()
    Stopper(False, on_stop=stopped.set)
    threads.left = 0
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.wait(20.0)


@pytest.mark.fault(
    "resources",
    "OpenBLAS gets no thread as a part starts, and sends its process a SIGINT",
    "one line, and exit code 1",
)
def test_a_library_without_threads_ends_a_part_in_one_line_and_with_a_failure(
    threads, command_line, monkeypatch, capfd
):
    def start(arguments):
        Stopper(False)
        threads.left = 0
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(work, "main", start)
    assert command_line("worker", TINY) == 1
    assert capfd.readouterr().err.startswith(
        "tmrl-like: error: the thread of a library cannot be started: "
    )
