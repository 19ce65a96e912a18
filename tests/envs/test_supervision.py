"""Environments that raise, hang, leave processes behind and cannot be made: the worker goes on."""

from __future__ import annotations

import math
import multiprocessing
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
from house import buffers_of

from tmrl_like.base.functional import partial
from tmrl_like.base.processes import family_of, is_alive
from tmrl_like.cli.check import Traffic, taken
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv
from tmrl_like.errors import ConfigError, EnvironmentAwayError, EnvironmentFaultError, MissingExtraError, PolicyError
from tmrl_like.networking import RolloutWorker
from tmrl_like.testing.fakes import CountingEnv, LinearActor
from tmrl_like.worker.options import WorkerOptions

HANG_S = 0.4
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(3600)"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmrl_like.envs.supervision._MAX_BACKOFF_S", 0.0)
    monkeypatch.setattr("tmrl_like.envs.supervision._CLOSE_WITHIN_S", 0.3)
    monkeypatch.setattr("tmrl_like.envs.supervision._STOP_WITHIN_S", 0.2)
    monkeypatch.setattr("tmrl_like.envs.game_processes._TERM_WITHIN_S", 0.2)


@pytest.fixture(autouse=True)
def no_control_thread_stays(until: Callable[..., None]) -> Iterator[None]:
    Hanging.made = []
    before = set(threading.enumerate())
    yield

    def all_ended() -> bool:
        for env in Hanging.made:
            env._free.set()
        return not [t for t in set(threading.enumerate()) - before if t.name == "tmrl-control"]

    until(all_ended)
    for env in Hanging.made:
        for end in env._sockets:
            end.close()


class Hanging(CountingEnv):
    """Hangs in the `at`-th call of one method, in one of several ways, or raises; the first `bad` instances do."""

    made: ClassVar[list[Hanging]] = []

    def __init__(self, where: str, how: str, bad: int = 1, at: int = 2) -> None:
        super().__init__(episode_steps=4)
        self._where, self._how, self._at = where, how, at
        self._calls = 0 if len(Hanging.made) < bad else math.inf
        self._free = threading.Event()
        self.closed_by = ""
        self._sockets = socket.socketpair()
        Hanging.made.append(self)
        self._maybe_hang("__init__", 1)

    def reset(self, **options: Any) -> Any:
        self._maybe_hang("reset", self._at)
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self._maybe_hang("step", self._at)
        return super().step(action)

    def close(self) -> None:
        self.closed_by = threading.current_thread().name
        self._maybe_hang("close", 1)
        self._sockets[1].close()
        self._sockets[0].close()

    def _maybe_hang(self, where: str, at: int) -> None:
        self._calls += where == self._where
        if where != self._where or self._calls != at:
            return
        if self._how == "lock":
            self._free.wait()
        elif self._how == "socket":
            self._sockets[0].recv(1)
        elif self._how == "process":
            stubborn_child().wait()
        elif self._how == "raise":
            raise ConnectionError("no answer")


def stubborn_child() -> subprocess.Popen[bytes]:
    """It ignores SIGTERM, from before this returns."""
    process = subprocess.Popen([sys.executable, "-S", "-c", STUBBORN], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
    return process


def make_worker(make_env: Callable[[], Any], **options: Any) -> RolloutWorker:
    page = WorkerOptions(**{"hang_timeout_s": HANG_S} | options)
    return RolloutWorker(make_env, LinearActor, standalone=True, options=page)


def stored(traffic: Traffic) -> dict[int, list[tuple[float, ...]]]:
    """Observations (episode, step) that were collected, by the breaks before them."""
    found: dict[int, list[tuple[float, ...]]] = {}
    for buffer in buffers_of(traffic):
        found.setdefault(int(buffer.stream), []).extend(tuple(s.obs.tolist()) for s in buffer.memory)
    return found


EPISODES = [(e, s) for e in (1, 2) for s in range(5)]


@pytest.mark.fault(
    "robots", "an environment raises", "the episode ends, the environment is built again, no transition crosses it"
)
@pytest.mark.parametrize("how", ["lock", "socket", "process", "raise"])
@pytest.mark.parametrize(("where", "at"), [("step", 7), ("reset", 2)])
def test_an_episode_that_breaks_off_is_a_fault_and_the_worker_goes_on(where: str, at: int, how: str) -> None:
    with make_worker(partial(Hanging, where=where, how=how, at=at)) as worker, taken(worker) as take:
        episodes = [worker.collect_train_episode() for _ in range(2)]
        assert [bool(e.fault) for e in episodes] == [False, True]
        assert episodes[1].truncated
        assert not episodes[1].terminated
        assert episodes[1].steps == (2 if where == "step" else 0)
        words = "ConnectionError: no answer" if how == "raise" else f"{where}() has not come back for 0.4 s"
        assert words in episodes[1].fault
        worker.run(nb_episodes=2, verbose=False)
        first, second = stored(take()).values()
        assert first == EPISODES[: 8 if where == "step" else 5]
        assert second == EPISODES
        assert worker.condition().env_steps == 4 + episodes[1].steps + 8
        broken, healthy = Hanging.made
        assert broken.closed_by == "tmrl-control"
        assert healthy.closed_by == ""
        assert (worker.loop.env.faults, worker.loop.env.rebuilds) == (1, 1)


def test_what_a_thread_that_was_left_does_later_touches_nothing(until: Callable[..., None]) -> None:
    with make_worker(partial(Hanging, where="step", how="lock", at=3)) as worker, taken(worker) as take:
        assert worker.collect_train_episode().fault
        before = stored(take())
        threads = threading.active_count()
        Hanging.made[0]._free.set()
        until(lambda: threading.active_count() < threads)
        assert Hanging.made[0].total_steps == 3
        assert worker.condition().env_steps == 2
        assert stored(take()) == {}
        assert list(before.values()) == [[(1, 0), (1, 1), (1, 2)]]


@pytest.mark.parametrize("how", ["lock", "raise"])
def test_an_environment_that_cannot_be_made_twice_is_made_the_third_time(how: str, until: Callable[..., None]) -> None:
    class Slow(Hanging):
        def __init__(self) -> None:
            where = ("step", "__init__", "__init__", "nowhere")[len(Hanging.made)]
            super().__init__(where, how, bad=3, at=2)

    with make_worker(Slow) as worker:
        assert worker.run_episode().fault
        assert not worker.run_episode().fault
        assert len(Hanging.made) == 4
        assert (worker.loop.env.faults, worker.loop.env.rebuilds) == (3, 1)
        late = Hanging.made[1:3]
        for env in late:
            env._free.set()
        until(lambda: how == "raise" or all(env.closed_by for env in late))


@pytest.mark.parametrize("where", ["step", "reset", "close", "__init__"])
def test_an_environment_that_hangs_again_and_again_ends_the_worker(where: str) -> None:
    class Always(Hanging):
        def __init__(self) -> None:
            how_many = len(Hanging.made)
            super().__init__("step" if where == "close" or not how_many else where, "lock", bad=99, at=1)

        def close(self) -> None:
            if where == "close":
                self._free.wait()

    worker = make_worker(Always, hang_timeout_s=0.1)
    with pytest.raises(EnvironmentFaultError, match=r"has not come back for 0.1 s \(5 faults in a row; giving up\)"):
        worker.run(verbose=False)
    worker.close()


def test_an_environment_whose_counterpart_is_away_is_tried_for_as_long_as_it_takes() -> None:
    class Away(CountingEnv):
        def reset(self, **options: Any) -> Any:
            tries.append(self)
            if len(tries) <= 8:
                raise EnvironmentAwayError("no robot answers")
            return super().reset(**options)

    tries: list[Away] = []
    with make_worker(Away) as worker:
        assert [bool(e.fault) for e in worker.run_episodes(nb_episodes=10)] == [True] * 8 + [False] * 2


def test_an_environment_that_is_made_again_begins_with_the_next_seed() -> None:
    class Seeded(CountingEnv):
        def reset(self, **options: Any) -> Any:
            seeds.append(options.get("seed"))
            return super().reset(**options)

    seeds: list[int | None] = []
    env = SupervisedEnv(Seeded, seed=5)
    env.run(env.reset)
    env.run(env.reset)
    env.rebuild(EnvironmentFaultError("broken"))
    env.run(env.reset)
    env.close()
    assert seeds == [5, None, 6]


@pytest.mark.parametrize("mistake", [ConfigError, MissingExtraError])
@pytest.mark.parametrize("where", ["reset", "step", "rebuilt"])
def test_a_users_mistake_is_not_tried_again(mistake: type[Exception], where: str) -> None:
    class Mistaken(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)
            self._maybe_raise("rebuilt" if len(made) == 2 else "made")

        def reset(self, **options: Any) -> Any:
            self._maybe_raise("reset")
            return super().reset(**options)

        def step(self, action: Any) -> Any:
            self._maybe_raise("step")
            raise RuntimeError("broken")

        def _maybe_raise(self, here: str) -> None:
            if here == where:
                raise mistake("no display")

    made: list[Mistaken] = []
    with make_worker(Mistaken) as worker, pytest.raises(mistake, match="no display"):
        worker.run(verbose=False)
    assert len(made) == (2 if where == "rebuilt" else 1)


@pytest.mark.parametrize("method", [m for m in ("fork", "forkserver") if m in multiprocessing.get_all_start_methods()])
def test_processes_of_an_environment_end_with_it_and_others_stay(method: str, until: Callable[..., None]) -> None:
    """Children and those of multiprocessing, started when it is made or later; not what multiprocessing keeps."""

    class WithChildren(CountingEnv):
        def __init__(self) -> None:
            super().__init__(raise_at=2 if not made else 0)
            made.append(self)
            forked = multiprocessing.get_context(method).Process(target=time.sleep, args=(3600,))
            forked.start()
            self.forked, self.children = psutil.Process(forked.pid), [stubborn_child()]

        def reset(self, **options: Any) -> Any:
            self.children.append(stubborn_child())
            return super().reset(**options)

        def living(self) -> int:
            return is_alive(self.forked) + sum(child.poll() is None for child in self.children)

    made: list[WithChildren] = []
    earlier = multiprocessing.get_context(method).Process(target=time.sleep, args=(0,))
    earlier.start()  # the fork server is there already, and not the environment's
    earlier.join()
    strangers = [stubborn_child()]
    try:
        with RolloutWorker(WithChildren, LinearActor, standalone=True) as worker:
            strangers.append(stubborn_child())
            assert worker.run_episode().fault
            assert made[0].living() == 0
            worker.run_episode()
            assert made[1].living() == 3
            own = {made[1].forked.pid, *(child.pid for child in made[1].children)}
            others = [child for child in psutil.Process().children() if child.pid not in own]
        assert made[1].living() == 0
        assert all(stranger.poll() is None for stranger in strangers)
        until(lambda: sum(map(is_alive, others)) == len(others) - 1)  # the worker's guard has ended
    finally:
        for process in strangers:
            process.kill()
            process.wait()


def test_a_worker_that_cannot_be_made_leaves_no_environment_behind(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"of something else")
    closed: list[bool] = []

    class Closable(CountingEnv):
        def close(self) -> None:
            closed.append(True)

    with pytest.raises(PolicyError):
        RolloutWorker(Closable, LinearActor, standalone=True, model_path=tmp_path / "weights")
    assert closed == [True]


def test_a_step_by_hand_that_hangs_raises_and_the_next_reset_has_a_new_environment() -> None:
    with make_worker(partial(Hanging, where="step", how="lock", at=2)) as worker:
        obs, _ = worker.reset(collect_samples=False)
        worker.step(obs, test=True, collect_samples=False)
        with pytest.raises(EnvironmentFaultError, match=r"step\(\) has not come back"):
            worker.step(obs, test=True, collect_samples=False)
        assert worker.reset(collect_samples=False)[0].tolist() == [1.0, 0.0]
        assert len(Hanging.made) == 2


def test_a_stop_leaves_an_environment_that_hangs_and_the_next_run_has_a_new_one(until: Callable[..., None]) -> None:
    with RolloutWorker(partial(Hanging, where="step", how="lock"), LinearActor, standalone=True) as worker:
        thread = threading.Thread(target=worker.run, kwargs={"verbose": False})
        thread.start()
        until(lambda: Hanging.made[0]._calls == 2)
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert not worker.run_episode().fault


def test_the_environment_is_made_stepped_and_closed_in_one_thread() -> None:
    seen: dict[str, int] = {}

    class Picky(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            seen["made"] = threading.get_ident()

        def step(self, action: Any) -> Any:
            seen["step"] = threading.get_ident()
            return super().step(action)

        def close(self) -> None:
            seen["close"] = threading.get_ident()

    for own_thread in (True, False):
        with make_worker(Picky, own_thread=own_thread) as worker:
            worker.run_episode()
        assert len(set(seen.values())) == 1
        assert (threading.get_ident() in seen.values()) is not own_thread


def test_an_environment_that_is_closed_runs_no_more() -> None:
    env = SupervisedEnv(CountingEnv)
    env.close()
    env.close()
    with pytest.raises(StoppedError):
        env.run(env.reset)


class Spoilt(CountingEnv):
    """Gives something odd once, in the third step or the first reset."""

    def __init__(self, spoil: list[Any], at_reset: bool = False) -> None:
        super().__init__(episode_steps=5)
        self._spoil, self._at_reset = spoil, at_reset  # empty: done

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return (self._spoil.pop()(obs) if self._at_reset and self._spoil else obs), info

    def step(self, action: Any) -> Any:
        obs, rew, *ends = super().step(action)
        if self._step == 3 and self._spoil:
            given = self._spoil.pop()
            if isinstance(given, type):
                raise given(3)
            obs, rew = (given(obs), rew) if callable(given) else (obs, given)
        return obs, rew, *ends


def not_a_number(obs: Any) -> Any:
    return np.full_like(obs, np.nan)


@pytest.mark.parametrize(
    ("given", "at_reset", "told"),
    [
        (not_a_number, False, "the environment's observation is not finite: array"),
        (not_a_number, True, r"observation after a reset is not finite: array\(\[nan"),
        (
            lambda obs: np.zeros(7, np.float32),
            False,
            r"not in the environment's observation space: expected .*, got float32 \(7,",
        ),
        (float("inf"), False, "the environment's reward is not finite: inf"),
        ("much", False, "the environment's reward is 'much'; expected a number"),
        (SystemExit, False, r"the environment raised in step\(\): SystemExit: 3"),
    ],
)
def test_what_cannot_be_learnt_from_is_a_fault_and_no_sample(given: Any, at_reset: bool, told: str) -> None:
    with RolloutWorker(partial(Spoilt, [given], at_reset), LinearActor, standalone=True) as worker:
        bad, good = worker.run_episodes(nb_episodes=2)
    assert re.search(told, bad.fault)
    assert (bad.terminated, bad.truncated, bad.steps > 0) == (False, True, not at_reset)
    assert (good.fault, good.steps) == ("", 5)


def test_a_preprocessor_may_know_what_to_do_about_infinity() -> None:
    """A range finder sees nothing: infinitely far."""
    env_cls, finite = partial(Spoilt, [lambda obs: np.full_like(obs, np.inf)]), np.nan_to_num
    with RolloutWorker(env_cls, LinearActor, standalone=True, obs_preprocessor=finite) as worker:
        stats = worker.run_episode()
    assert (stats.fault, stats.steps) == ("", 5)


class ClosesAfterItsChild(CountingEnv):
    """A step and `close` wait for a process, as an engine's client does."""

    child_lives = False  # when `close` was called

    def __init__(self) -> None:
        super().__init__(episode_steps=2)
        self._child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])

    def step(self, action: Any) -> Any:
        self._child.wait()
        return super().step(action)

    def close(self) -> None:
        ClosesAfterItsChild.child_lives = any(map(is_alive, family_of(self._child.pid)))
        self._child.wait()


def test_after_a_hang_processes_end_before_the_environment_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    with make_worker(ClosesAfterItsChild) as worker:
        stats = worker.run_episode()
        assert "the environment hangs: step()" in stats.fault
        assert not ClosesAfterItsChild.child_lives
    assert "closing the environment failed" not in caplog.text.partition("rebuilding the environment")[0]
