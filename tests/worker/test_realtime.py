"""The worker's requests to the operating system, and its behaviour if one is refused."""

import gc
import os
import sys
import threading
import weakref
from collections import defaultdict

import pytest
from house import alone
from kit.environments import calling
from kit.fakes import CountingEnv

from tmrl_like.base.functional import partial
from tmrl_like.errors import ConfigError
from tmrl_like.worker.realtime import collect_garbage, real_time

on_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="asks the kernel of Linux"
)


@pytest.mark.parametrize("cpu_affinity", [[], [9999], 0, "0"])
def test_processors_that_are_not_there_are_refused(cpu_affinity):
    with pytest.raises(ConfigError, match=r"cpu_affinity is .*; expected"):
        alone(cpu_affinity=cpu_affinity)


@on_linux
def test_what_is_not_permitted_is_reported_in_one_line_and_the_loop_runs(caplog, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with real_time(threading.get_native_id(), [threading.get_native_id()], priority=10):
        pass
    assert "real-time priority 10 is not granted (Operation not permitted)" in caplog.text


@pytest.fixture
def kernel(monkeypatch):
    """A kernel that grants every priority; it maps threads to their class and priority."""
    threads = defaultdict(lambda: (os.SCHED_OTHER, os.sched_param(0)))
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: threads[thread][0])
    monkeypatch.setattr(os, "sched_getparam", lambda thread: threads[thread][1])
    monkeypatch.setattr(
        os, "sched_setscheduler", lambda thread, *what: threads.update({thread: what})
    )
    return threads


@on_linux
def test_a_worker_has_the_priority_and_processor_that_it_asked_for_and_only_while_it_runs(kernel):
    seen, everywhere = [], os.sched_getaffinity(0)

    def look(env):
        thread = threading.get_native_id()
        seen.append((thread, kernel[thread], os.sched_getaffinity(0)))

    asked = {"cpu_affinity": [min(everywhere)], "realtime_priority": 10}
    with alone(calling(look), **asked) as worker:
        worker.run(nb_episodes=1)
    thread, *granted = seen[-1]
    assert thread != threading.get_native_id()
    assert granted == [(os.SCHED_FIFO, os.sched_param(10)), {min(everywhere)}]
    assert kernel[thread] == (os.SCHED_OTHER, os.sched_param(0))
    assert os.sched_getaffinity(0) == everywhere


@on_linux
def test_a_thread_that_helps_two_control_loops_is_as_before_when_both_have_ended(kernel):
    link, before = 3, kernel[3]
    first, second = (real_time(control, [link], priority=10) for control in (1, 2))
    first.__enter__()
    second.__enter__()
    assert kernel[link] == (os.SCHED_FIFO, os.sched_param(1))
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert kernel[link] == before


def state_of_python():
    return gc.isenabled(), gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count()


@pytest.mark.usefixtures("unfrozen")
def test_python_is_as_it_was_when_the_last_of_the_loops_in_a_process_has_ended():
    before = state_of_python()
    first, second = real_time(threading.get_native_id()), real_time(threading.get_native_id())
    with first:
        with second:
            pass
        assert gc.get_threshold()[0] > before[1][0]
        assert sys.getswitchinterval() < before[2]
        assert gc.get_freeze_count() > 1000
    assert state_of_python() == before


def test_what_a_loop_found_when_it_began_is_freed_though_another_one_runs_on():
    with real_time(threading.get_native_id()):
        cycle = Cycle()
        is_alive = weakref.ref(cycle)
        with real_time(threading.get_native_id()):
            pass
        del cycle
        gc.collect()
        assert not is_alive()


@pytest.mark.parametrize("control_loop_stands_still", [True, False])
def test_what_other_threads_leave_to_be_collected_does_not_wait_for_ever(
    control_loop_stands_still, monkeypatch
):
    monkeypatch.setattr(CyclicEnv, "most_alive", 0)
    with real_time(threading.get_native_id()):
        for number in range(200_000):
            Cycle()
            if number % 1000 == 0 and not control_loop_stands_still:
                collect_garbage(is_between_episodes=False)
    assert (CyclicEnv.most_alive < 10_000) is not control_loop_stands_still
    assert CyclicEnv.most_alive < 110_000


class CyclicEnv(CountingEnv):
    """An environment whose steps leave reference cycles, which only a collection frees, and keep
    some objects for a while.
    """

    alive = most_alive = 0
    is_stepping = False
    _kept = ()

    def step(self, action):
        CyclicEnv.is_stepping = True
        cycle = Cycle()
        self._kept = [*self._kept[-300:], cycle, [cycle]]
        result = super().step(action)
        CyclicEnv.is_stepping = False
        return result


class Cycle:
    def __init__(self):
        self.own = self
        CyclicEnv.alive += 1
        CyclicEnv.most_alive = max(CyclicEnv.alive, CyclicEnv.most_alive)

    def __del__(self):
        CyclicEnv.alive -= 1


@pytest.mark.parametrize("episodes", [1, 300])
def test_what_an_environment_leaves_to_be_collected_is_collected_but_not_within_its_steps(
    episodes, monkeypatch
):
    within_steps = []

    def note(phase, info):
        within_steps.append(CyclicEnv.is_stepping)

    monkeypatch.setattr(CyclicEnv, "most_alive", 0)
    gc.callbacks.append(note)
    try:
        with alone(partial(CyclicEnv, episode_steps=6000 // episodes)) as worker:
            worker.run(nb_episodes=episodes, verbose=False)
    finally:
        gc.callbacks.remove(note)
    assert worker.condition().env_steps == 6000
    assert CyclicEnv.most_alive < 3000
    assert len(within_steps) > max(10, episodes)
    assert not any(within_steps)
