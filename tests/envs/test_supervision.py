"""The worker survives environments that raise, hang, leave processes behind or cannot be made."""

import collections
import multiprocessing
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
from house import alone, buffers_of, collect
from kit.environments import calling, returning
from kit.fakes import CountingEnv
from kit.pythons import stubborn_child
from kit.refusals import one_line

from tmrl_like.base.functional import partial
from tmrl_like.base.processes import is_alive
from tmrl_like.cli.check import taken
from tmrl_like.envs.float32 import Float32Env
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv
from tmrl_like.errors import (
    ConfigError,
    EnvironmentAwayError,
    EnvironmentFaultError,
    MissingExtraError,
    PolicyError,
)

HANG_S = 0.4


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("tmrl_like.envs.supervision.MAX_BACKOFF_S", 0.0)
    monkeypatch.setattr("tmrl_like.envs.supervision.CLOSE_WITHIN_S", 0.3)
    monkeypatch.setattr("tmrl_like.envs.supervision.STOP_WITHIN_S", 0.2)
    monkeypatch.setattr("tmrl_like.envs.game_processes.TERM_WITHIN_S", 0.2)


@pytest.fixture
def free(until):
    """An event that ends all hangs, also after the test, which then must leave no control thread
    behind.
    """
    free, before = threading.Event(), set(threading.enumerate())
    yield free
    free.set()
    until(lambda: not [t for t in set(threading.enumerate()) - before if t.name == "tmrl-control"])


class Troubled(CountingEnv):
    """An environment that calls `meets(number of the environment, method, number of the call)` in
    each call; it may hang or raise.
    """

    def __init__(self, meets, made):
        super().__init__(episode_steps=4)
        self.number, self.calls, self.closed_by = len(made), collections.Counter(), ""
        self._meets = meets
        made.append(self)
        self._called("__init__")

    def reset(self, **options):
        self._called("reset")
        return super().reset(**options)

    def step(self, action):
        self._called("step")
        return super().step(action)

    def close(self):
        self.closed_by = threading.current_thread().name
        self._called("close")

    def _called(self, method):
        self.calls[method] += 1
        self._meets(self.number, method, self.calls[method])


class Troubles:
    """Makes environments that, in given calls, hang or raise."""

    def __init__(self, free):
        self.made, self.free = [], free

    def __call__(self, *calls, how="hang"):
        """Return a factory of environments with trouble in these calls; see `Troubled`."""
        return self.of(lambda *call: getattr(self, how)() if call in calls else None)

    def of(self, meets):
        return partial(Troubled, meets, self.made)

    def hang(self):
        self.free.wait()

    def fail(self):
        raise ConnectionError("no answer")


@pytest.fixture
def trouble(free):
    return Troubles(free)


def make_worker(make_env, hang_timeout_s=HANG_S, **options):
    return alone(make_env, hang_timeout_s=hang_timeout_s, **options)


def stored(traffic):
    """Return the collected observations (episode, step), by the number of breaks before them."""
    found = {}
    for buffer in buffers_of(traffic):
        found.setdefault(int(buffer.stream), []).extend(
            tuple(s.obs.tolist()) for s in buffer.memory
        )
    return found


EPISODES = [(e, s) for e in (1, 2) for s in range(5)]


@pytest.mark.fault(
    "robots",
    "an environment raises",
    "the episode ends, the environment is built again, no transition crosses it",
)
@pytest.mark.fault(
    "robots", "an environment hangs", "it is left and built again; nothing is lost or doubled"
)
@pytest.mark.parametrize(
    ("how", "told"),
    [("hang", "{}() has not come back for 0.4 s"), ("fail", "ConnectionError: no answer (")],
)
@pytest.mark.parametrize(("where", "at", "steps"), [("step", 7, 2), ("reset", 2, 0)])
def test_an_episode_that_breaks_off_is_a_fault_and_the_worker_goes_on(
    where, at, steps, how, told, trouble
):
    with make_worker(trouble((0, where, at), how=how)) as worker, taken(worker) as take:
        whole, broken = [worker.collect_train_episode() for _ in range(2)]
        assert not whole.fault
        assert (broken.truncated, broken.terminated, broken.steps) == (True, False, steps)
        assert told.format(where) in broken.fault
        worker.run(nb_episodes=2, verbose=False)
        first, second = stored(take()).values()
        assert first == EPISODES[: 8 if where == "step" else 5]
        assert second == EPISODES
        assert worker.condition().env_steps == 4 + steps + 8
        assert [env.closed_by for env in trouble.made] == ["tmrl-control", ""]
        assert (worker.loop.env.faults, worker.loop.env.rebuilds) == (1, 1)


def test_what_a_thread_that_was_left_does_later_touches_nothing(trouble, free, until):
    """The thread was abandoned by a stop; the next run has another environment."""
    with (
        make_worker(trouble((0, "step", 3)), hang_timeout_s=30.0) as worker,
        taken(worker) as take,
    ):
        thread = threading.Thread(target=worker.run, kwargs={"verbose": False})
        thread.start()
        until(lambda: trouble.made[0].calls["step"] == 3)
        worker.stop()
        thread.join(60)
        assert list(stored(take()).values()) == [[(1, 0), (1, 1), (1, 2)]]
        threads = threading.active_count()
        free.set()
        until(lambda: threading.active_count() < threads)
        assert trouble.made[0].total_steps == 3
        assert worker.condition().env_steps == 2
        assert stored(take()) == {}
        assert not worker.run_episode().fault
        assert len(trouble.made) == 2


def test_what_was_left_between_two_calls_makes_no_other_and_does_not_stop_its_successor(
    trouble, free, until, monkeypatch
):
    """For example, the policy hangs and not the environment."""
    stop = Mock()
    monkeypatch.setattr(Troubled, "stop", stop, raising=False)

    def act():
        env.reset()
        env.stopping.set()
        free.wait()
        env.step(np.zeros(1, np.float32))

    with closing(SupervisedEnv(trouble())) as env:
        threads = threading.active_count()
        with pytest.raises(StoppedError):
            env.run(act)
        env.stopping.clear()
        env.revive()
        env.run(env.reset)
        stop.reset_mock()
        free.set()
        until(lambda: threading.active_count() <= threads)
        stop.assert_not_called()
    assert (trouble.made[0].calls["reset"], trouble.made[0].calls["step"]) == (1, 0)


def test_a_step_during_which_the_whole_process_was_suspended_does_not_hang(monkeypatch, until):
    """The step goes on until the thread that waits for it has looked again."""
    slept_s, looks = [0.0], []
    fake = SimpleNamespace(monotonic=lambda: looks.append(0) or time.monotonic() + slept_s[0])
    monkeypatch.setattr("tmrl_like.envs.supervision.time", fake)

    def suspended(env):
        if env.total_steps == 2:
            slept_s[0] = 60.0
            looks.clear()
            until(lambda: len(looks) > 1)

    with make_worker(calling(suspended)) as worker:
        assert not worker.run_episode().fault


def test_an_environment_that_is_ready_after_all_was_closed_closes_itself(trouble, free, until):
    env = SupervisedEnv(trouble((1, "__init__", 1)))
    with ThreadPoolExecutor(1) as beside:
        rebuilt = beside.submit(env.rebuild, EnvironmentFaultError("broken"))
        until(lambda: len(trouble.made) == 2)
        env.close()
        free.set()
        assert isinstance(rebuilt.exception(), StoppedError)
    until(lambda: all(made.closed_by for made in trouble.made))


def test_an_environment_that_is_closed_is_not_made_again(trouble):
    env = SupervisedEnv(trouble())
    env.close()
    env.stopping.clear()
    with pytest.raises(StoppedError):
        env.rebuild(EnvironmentFaultError("broken"))


@pytest.mark.parametrize("where", ["step", "reset", "close", "__init__"])
def test_an_environment_that_hangs_again_and_again_ends_the_worker(where, trouble):
    calls = {(number, method, 1) for number in range(5) for method in ("step", where)} - {
        (0, "__init__", 1)
    }
    worker = make_worker(trouble(*calls), hang_timeout_s=0.1)
    with pytest.raises(
        EnvironmentFaultError, match=r"has not come back for .* s \(5 faults in a row; giving up\)"
    ):
        worker.run(verbose=False)
    assert worker.loop.env.faults == 5
    worker.close()


def test_an_environment_whose_counterpart_is_away_is_tried_for_as_long_as_it_takes(trouble):
    def meets(number, method, _):
        if method == "reset" and number < 8:
            raise EnvironmentAwayError("no robot answers")

    with make_worker(trouble.of(meets)) as worker:
        faults = [bool(stats.fault) for stats in worker.run_episodes(nb_episodes=9)]
    assert faults == [True] * 8 + [False]


def test_an_environment_whose_reset_takes_no_seed_is_given_none(monkeypatch):
    monkeypatch.setattr(CountingEnv, "reset", lambda self: (0, {}))
    with closing(SupervisedEnv(CountingEnv, seed=5)) as env:
        assert env.run(env.reset) == (0, {})


def test_an_environment_that_is_made_again_begins_with_the_next_seed(monkeypatch):
    given = []
    monkeypatch.setattr(CountingEnv, "reset", lambda self, **how: given.append(how) or (0, {}))
    env = SupervisedEnv(CountingEnv, seed=5)
    env.run(env.reset)
    env.run(env.reset)
    env.rebuild(EnvironmentFaultError("broken"))
    env.run(env.reset)
    assert given == [{"seed": 5}, {}, {"seed": 6}]
    env.close()
    env.close()
    with pytest.raises(StoppedError):
        env.run(env.reset)


@pytest.mark.parametrize(
    ("mistake", "where", "environments"),
    [(ConfigError, "reset", 1), (MissingExtraError, "step", 1), (ConfigError, "__init__", 2)],
)
def test_a_users_mistake_is_not_tried_again(mistake, where, environments, trouble):
    def meets(number, method, _):
        if method == where and number == environments - 1:
            raise mistake("no display")
        if method == "step":
            raise RuntimeError("broken")

    with make_worker(trouble.of(meets)) as worker, pytest.raises(mistake, match="no display"):
        worker.run(verbose=False)
    assert len(trouble.made) == environments


@pytest.mark.parametrize(
    ("method", "returns"),
    [
        ("reset", print),  # nothing
        ("step", print),
        ("reset", lambda obs, info: obs),
        ("step", lambda obs, rew, terminated, truncated, info: (obs, rew, terminated, info)),
        ("step", lambda obs, rew, _, *ends: (obs, rew, np.array([True, False]), *ends)),
        ("step", lambda obs, rew, terminated, truncated, info: (obs, rew, 0, info, truncated)),
    ],
)
@pytest.mark.parametrize("wrap", [lambda env: env, Float32Env])
def test_what_is_no_result_of_gymnasium_is_one_line(method, returns, wrap):
    changed = returning(returns, method=method)
    bools = "" if method == "reset" else "bools as terminated and truncated, and "
    expected = rf"expected \(observation, .*, with {bools}a dict as info$"
    told = rf"the environment's {method}\(\) returned .*; {expected}"
    with make_worker(lambda: wrap(changed())) as worker, one_line(told):
        worker.run_episode()


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
@pytest.mark.parametrize("space", [None, "Box(2)"])
def test_what_has_no_space_of_gymnasium_is_one_line(name, space):
    described = type("Described", (CountingEnv,), {name: property(lambda _: space, print)})
    with one_line(rf"the environment's {name} is '?{re.escape(str(space))}'?; expected"):
        make_worker(described)


def test_a_close_that_ends_the_program_ends_no_worker(trouble, caplog):
    def meets(number, method, calls):
        if method == "close":
            sys.exit("bye")
        if (number, method, calls) == (0, "step", 2):
            raise RuntimeError("broken")

    with make_worker(trouble.of(meets)) as worker:
        assert worker.run_episode().fault
        assert not worker.run_episode().fault
    said = "closing the environment failed: RuntimeError: it exits (bye)"
    assert caplog.messages.count(said) == 2


@pytest.mark.parametrize(
    "method", [m for m in ("fork", "forkserver") if m in multiprocessing.get_all_start_methods()]
)
def test_processes_of_an_environment_end_with_it_and_others_stay(method):
    """Children and processes of multiprocessing end, whenever they were started; the fork server
    stays.
    """

    def forked(sleeps_s):
        process = multiprocessing.get_context(method).Process(target=time.sleep, args=(sleeps_s,))
        process.start()
        return process

    class WithChildren(CountingEnv):
        def __init__(self):
            super().__init__(raise_at=2 if not made else 0)
            made.append(self)
            self.forked = psutil.Process(forked(3600).pid)
            self.children = [stubborn_child()]

        def reset(self, **options):
            self.children.append(stubborn_child())
            return super().reset(**options)

        def living(self):
            return is_alive(self.forked) + sum(child.poll() is None for child in self.children)

    made = []
    forked(0).join()  # so that the fork server is not the environment's
    strangers = [stubborn_child()]
    try:
        with make_worker(WithChildren, hang_timeout_s=30.0) as worker:
            strangers.append(stubborn_child())
            assert worker.run_episode().fault
            assert made[0].living() == 0
            worker.run_episode()
            assert made[1].living() == 3
        assert made[1].living() == 0
        assert [stranger.poll() for stranger in strangers] == [None, None]
    finally:
        for process in strangers:
            process.kill()
            process.wait()


def test_a_worker_that_cannot_be_made_leaves_no_environment_behind(tmp_path, trouble):
    (tmp_path / "weights").write_bytes(b"of something else")
    for wrong in (
        {"model_path": tmp_path / "weights"},
        {"actor_cls": Mock(side_effect=PolicyError)},
    ):
        with pytest.raises(PolicyError):
            make_worker(trouble(), **wrong)
    assert [env.calls["close"] for env in trouble.made] == [1, 1]


def test_the_environment_is_made_stepped_and_closed_in_a_thread_of_its_own(trouble):
    threads = []
    with make_worker(trouble.of(lambda *_: threads.append(threading.get_ident()))) as worker:
        worker.run_episode()
    assert trouble.made[0].closed_by
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads


def filled_with(value):
    return lambda obs, *others: (np.full_like(obs, value), *others)


def paying(reward):
    return lambda obs, _, *others: (obs, reward, *others)


@pytest.mark.parametrize(
    ("method", "change", "told"),
    [
        ("step", filled_with(np.nan), "the environment's observation is not finite: array"),
        ("reset", filled_with(np.nan), r"observation after a reset is not finite: array\(\[nan"),
        ("step", paying(float("inf")), "the environment's reward is not finite: inf"),
        ("step", paying([[1.0], []]), r"reward is \[\[1.0\], \[\]\]; expected a number"),
        ("step", lambda *_: sys.exit(3), r"the environment raised in step\(\): SystemExit: 3"),
        (
            "reset",
            lambda obs, info: (obs.tolist(), info),
            r"not in the environment's observation space: expected Box.*, got list of float",
        ),
    ],
)
def test_what_cannot_be_learnt_from_is_a_fault_and_no_sample(method, change, told):
    with make_worker(returning(change, method=method)) as worker:
        (stats,), samples = collect(worker)
    assert re.search(told, stats.fault)
    assert (stats.terminated, stats.truncated, samples) == (False, True, [])


def test_a_preprocessor_may_know_what_to_do_about_infinity():
    """A range finder that sees nothing may report infinity."""
    env_cls = returning(filled_with(np.inf))
    with make_worker(env_cls, obs_preprocessor=np.nan_to_num) as worker:
        assert not worker.run_episode().fault


def test_after_a_hang_processes_end_before_the_environment_is_closed(until):
    """The client of a game engine, for example, waits for its engine in a step and in `close`."""
    was_alive = []

    class ClosesAfterItsChild(CountingEnv):
        def __init__(self):
            super().__init__()
            self.child = stubborn_child()
            self.seen = psutil.Process(self.child.pid)

        def step(self, action):
            self.child.wait()
            return super().step(action)

        def close(self):
            # `poll` gives no answer while the abandoned step still waits
            was_alive.append(is_alive(self.seen))
            self.child.kill()
            self.child.wait()

    with make_worker(ClosesAfterItsChild) as worker:
        assert "the environment hangs: step()" in worker.run_episode().fault
        until(lambda: was_alive)
        assert was_alive == [False]
