"""Moving hardware is stopped by the environment's `stop`, once, however a worker ends."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.wrappers import TimeLimit
from house import alone
from kit.environments import acting
from kit.fakes import CountingEnv, LinearActor
from kit.interfaces import Interface
from kit.refusals import one_line
from kit.waiting import until
from moving import Moving, Remote, WithDevice, drive
from said import say

from tmrl_like.base.processes import is_alive
from tmrl_like.envs.brake import Brake
from tmrl_like.envs.real_time import RealTimeEnv
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv
from tmrl_like.errors import EnvironmentFaultError

WITHIN_S = 2.0  # an idle machine takes milliseconds
HANG_S = 0.4
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


class Diary:
    """The events recorded in a file."""

    def __init__(self, file):
        file.touch()
        self.file = str(file)

    @property
    def lines(self):
        """List of [event, time]."""
        return [line.split() for line in Path(self.file).read_text().splitlines()]

    @property
    def words(self):
        return [word for word, _ in self.lines]

    @property
    def stops(self):
        return sum(word.startswith("stopped") for word in self.words)

    def time_of(self, word):
        return float(dict(self.lines)[word])


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path / "said.txt")


@pytest.fixture
def in_time(figure):
    """Return a function that asserts that `took_s` seconds are soon enough, and records them."""

    def check(took_s):
        figure(f"stopped after {1e3 * took_s:.1f} ms")
        assert took_s < WITHIN_S

    return check


@pytest.fixture
def gives_up(monkeypatch):
    """Make workers give up at the first fault."""
    monkeypatch.setattr("tmrl_like.envs.supervision.MAX_FAULTS_IN_A_ROW", 1)
    monkeypatch.setattr("tmrl_like.envs.supervision.CLOSE_WITHIN_S", 0.3)


def make_worker(env_cls, *arguments, actor_cls=LinearActor):
    return alone(partial(env_cls, *arguments), actor_cls, hang_timeout_s=HANG_S)


@pytest.mark.fault(
    "robots",
    "policy or environment raises",
    "what moves is stopped at once, only once, then closed",
)
@pytest.mark.parametrize("where", ["act", "step", "reset"])
def test_what_raises_stops_what_moves(gives_up, where, diary, in_time):
    def catch_fire(*_, **__):
        say(diary.file, "raises")
        raise RuntimeError("on fire")

    def act(obs):
        return catch_fire() if where == "act" and obs[0, 1] == 7 else np.zeros(1, np.float32)

    env_cls = type("Raising", (Moving,), {where: catch_fire})
    with make_worker(env_cls, diary.file, actor_cls=acting(act)) as worker:
        with pytest.raises((RuntimeError, EnvironmentFaultError), match="on fire"):
            worker.run_episodes(nb_episodes=3)
        assert diary.stops == 1, "it does not wait for the worker's end"
    assert diary.words[diary.words.index("raises") :] == ["raises", "stopped", "closed"]
    in_time(diary.time_of("stopped") - diary.time_of("raises"))


@pytest.mark.fault(
    "robots",
    "an environment hangs while it moves something",
    "that is stopped when the hang is known",
)
def test_what_hangs_is_stopped_when_the_hang_is_known(diary, in_time):
    def drive():
        env.reset()
        while True:
            env.step(np.zeros(1, np.float32))

    with contextlib.closing(
        SupervisedEnv(partial(Moving, diary.file, "hangs"), hang_timeout_s=HANG_S)
    ) as env:
        with pytest.raises(EnvironmentFaultError, match="hangs"):
            env.run(drive)
        assert diary.stops == 1, "it does not wait until the environment is closed"
    assert diary.stops == 1
    in_time(diary.time_of("stopped") - diary.time_of("hangs") - HANG_S)


@pytest.mark.fault(
    "robots",
    "a process that an environment needs is killed, or stands still",
    "what moves is stopped",
)
@posix
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_without_its_device_what_moves_is_stopped(gives_up, how, diary, in_time):
    done_at = []

    def harm():
        if worker.env.total_steps == 5 and not done_at:
            done_at.append(time.monotonic())
            worker.env.device.send_signal(getattr(signal, how))

    with (
        make_worker(WithDevice, diary.file) as worker,
        pytest.raises(EnvironmentFaultError, match=r"Broken pipe|gone|hangs"),
    ):
        worker.run_episode(after_step=harm)
    assert diary.words[-3:] == ["moves", "stopped", "closed"]
    noticed_after_s = HANG_S if how == "SIGSTOP" else 0.0
    in_time(diary.time_of("stopped") - done_at[0] - noticed_after_s)


@pytest.fixture
def start():
    """Return a function that starts a worker process, and returns it as soon as it moves or
    hangs.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kit.fakes", "tmrl_like.worker.worker"])
    started = []

    def begin(diary, env_cls=Moving, what="drives"):
        process = context.Process(target=drive, args=(env_cls, diary.file, what), daemon=True)
        process.start()
        started.append(process)
        until(lambda: ("hangs" if what == "hangs" else "moves") in diary.words)
        return psutil.Process(process.pid)

    yield begin
    for process in started:
        process.kill()
        process.join()


@pytest.mark.fault(
    "processes",
    "a worker gets SIGTERM or Ctrl-C, and its step hangs",
    "what moves is stopped at once",
)
@posix
@pytest.mark.parametrize(
    ("name", "what"), [("SIGTERM", "drives"), ("SIGTERM", "hangs"), ("SIGINT", "hangs")]
)
def test_a_signal_stops_what_moves(name, what, start, diary, in_time):
    process = start(diary, what=what)
    before = diary.stops
    asked_at = time.monotonic()
    process.send_signal(getattr(signal, name))
    until(lambda: not is_alive(process))
    assert diary.stops == before + 1
    assert "moves" not in diary.words[diary.words.index("stopped") :]
    in_time(diary.time_of("stopped") - asked_at)


@pytest.mark.fault(
    "processes",
    "a worker is killed while it moves something",
    "the guard's process stops that, once",
)
@posix
@pytest.mark.parametrize(
    ("env_cls", "word"), [(Remote, "stopped-from-outside"), (WithDevice, "stopped")]
)
def test_a_killed_worker_is_stopped_from_outside(env_cls, word, start, diary, in_time):
    process = start(diary, env_cls)
    time.sleep(1.0)  # by now the guard has imported the function, or found the device
    started = process.children(recursive=True)
    killed_at = time.monotonic()
    process.kill()
    until(lambda: not any(map(is_alive, started)))
    assert diary.stops == 1
    in_time(diary.time_of(word) - killed_at)


def test_each_run_is_stopped_once_and_the_next_reset_moves_again(diary):
    """After an orderly end, nothing is stopped from outside either."""
    before = psutil.Process().children()
    with make_worker(Remote, diary.file) as worker:
        worker.run_episodes(nb_episodes=2)
        worker.run_episode()
        worker.measure(5)
        assert diary.words == ["made", *["moves", "moves", "stopped"], *["moves", "stopped"] * 2]
        obs = worker.run_in_control_thread(lambda: worker.loop.reset(False))
        worker.run_in_control_thread(lambda: worker.loop.step(obs, True, False))
        started = [process for process in psutil.Process().children() if process not in before]
    assert started  # the guard
    until(lambda: not any(map(is_alive, started)))
    assert diary.words[-3:] == ["moves", "stopped", "closed"]


@pytest.mark.parametrize(
    ("layers", "stopped"),
    [(["inner", "outer"], ["outer"]), (["inner", "flag"], ["inner"]), (["flag"], [])],
)
def test_of_all_layers_of_an_environment_the_outermost_that_can_is_stopped_once(layers, stopped):
    said = []

    def make():
        env = CountingEnv()
        for name in layers:
            env = gymnasium.Wrapper(TimeLimit(env, 10))
            # a flag of that name stops nothing
            env.stop = partial(said.append, name) if name != "flag" else False
            env.moves_hardware = bool(env.stop)
        return env

    with contextlib.closing(SupervisedEnv(make)) as env:
        assert env.moves_hardware == env.brake.exists == bool(stopped)
        env.run(env.reset)
    assert said == stopped


def test_what_was_stopped_takes_no_step_before_the_next_reset(diary):
    def step():
        env.run(lambda: env.step(np.zeros(1, np.float32)))

    with contextlib.closing(SupervisedEnv(partial(Moving, diary.file))) as env:
        env.run(env.reset)
        env.stopping.set()
        with pytest.raises(StoppedError):
            while True:
                step()
        with pytest.raises(StoppedError):
            env.run(env.reset)
        env.stopping.clear()
        env.run(env.reset)
        step()
    assert diary.words == ["made", "moves", "stopped", "moves", "stopped", "closed"]


def test_an_interface_whose_stop_is_a_flag_cannot_be_stopped():
    flagged = type("Flagged", (Interface,), {"stop": False})
    with contextlib.closing(SupervisedEnv(partial(RealTimeEnv, flagged))) as env:
        assert not env.brake.exists


class Arm(Interface):
    """An interface that can be stopped; `when_seen` is called before it is observed."""

    when_seen = int

    @property
    def moved(self):
        """The calls that move it or stop it, since it was made."""
        return [call for call in self.calls if call in ("reset", "send_control", "stop")]

    def get_obs_rew_terminated_info(self):
        self.when_seen()
        return super().get_obs_rew_terminated_info()

    def stop(self):
        self._note("stop")


@pytest.fixture(params=[True, False], ids=["waits", "does not wait"])
def arm_env(request, manual_time):
    """An arm after a reset; `wait_on_done` or not."""
    with contextlib.closing(
        SupervisedEnv(partial(RealTimeEnv, Arm, wait_on_done=request.param))
    ) as env:
        env.run(env.reset)
        yield env


@pytest.mark.parametrize(
    ("call", "ends"),
    [
        (lambda env: env.step(env.default_action), contextlib.nullcontext()),
        # of an episode that was cut: it waits for the end of its time-step first
        (lambda env: env.reset(), pytest.raises(StoppedError)),
    ],
    ids=["step", "reset"],
)
def test_an_interface_that_was_stopped_within_a_time_step_is_sent_nothing_more(arm_env, call, ends):
    arm = arm_env.env.unwrapped.interface

    def stop():
        arm.when_seen = int
        arm_env.stopping.set()
        until(lambda: "stop" in arm.moved)

    arm.when_seen = stop
    with ends:
        arm_env.run(lambda: call(arm_env))
    assert arm.moved == ["reset", "send_control", "stop"]
    arm_env.stopping.clear()
    arm_env.run(arm_env.reset)
    arm_env.close()
    assert arm.moved == ["reset", "send_control", "stop"] * 2


class Prepared(gymnasium.Wrapper):
    """A wrapper whose reset begins with `prepare`."""

    prepare = int

    def reset(self, **options):
        self.prepare()
        return super().reset(**options)


def test_a_stop_while_a_wrapper_prepares_a_reset_holds(manual_time):
    with contextlib.closing(SupervisedEnv(lambda: Prepared(RealTimeEnv(Arm)))) as env:
        env.run(env.reset)
        arm = env.env.unwrapped.interface

        def stop():
            env.stopping.set()
            until(lambda: "stop" in arm.moved)

        env.env.prepare = stop
        with pytest.raises(StoppedError):
            env.run(env.reset)
        assert arm.moved == ["reset", "send_control", "stop"]
        env.env.prepare = int
        env.stopping.clear()
        env.run(env.reset)
        assert arm.moved[3:] == ["reset", "send_control"]


def test_a_command_that_was_under_way_for_long_is_followed_by_another_stop(arm_env):
    arm = arm_env.env.unwrapped.interface
    send = arm.send_control

    def send_late(control):
        arm_env.stopping.set()
        until(lambda: "stop" in arm.moved)
        send(control)

    arm.send_control = send_late
    arm_env.run(lambda: arm_env.step(arm_env.default_action))
    assert arm.moved == ["reset", "send_control", "stop", "send_control", "stop"]


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"stop_from_outside": ("said.say", "file", "stopped")}, "give it a method stop"),
        ({"stop": True}, "the environment's stop is True; expected a method"),
    ],
)
def test_what_cannot_be_stopped_does_not_start(attributes, said):
    with one_line(said):
        SupervisedEnv(type("Unstoppable", (CountingEnv,), attributes))


@pytest.mark.parametrize(
    ("failure", "within_s", "told"),
    [
        (None, 0.05, "has not come back for 0.05 s: what it stops may still move"),
        (ConnectionError("no answer"), 60.0, "failed: ConnectionError: no answer"),
        (SystemExit("no answer"), 60.0, "failed: SystemExit: no answer"),
    ],
)
def test_a_stop_that_fails_or_hangs_holds_nobody_up(failure, within_s, told, caplog, monkeypatch):
    monkeypatch.setattr("tmrl_like.envs.brake.STOPS_WITHIN_S", within_s)
    free = threading.Event()
    stubborn = Mock(side_effect=failure or free.wait)
    with make_worker(type("Stubborn", (CountingEnv,), {"stop": stubborn})) as worker:
        assert len(worker.run_episodes(nb_episodes=2)) == 2
    free.set()
    stubborn.assert_called_once_with()
    lines = [line for line in caplog.messages if "stop()" in line]
    assert set(lines) == {f"the environment's stop() {told}"}
    assert failure is None or len(lines) == 1


def test_a_stop_while_the_guard_is_told_of_a_reset_lets_none_begin():
    stopping = threading.Event()
    guard = Mock(**{"call_at_end.side_effect": lambda _: stopping.set()})
    brake = Brake(SimpleNamespace(stop=pytest.fail), guard, stopping)
    assert not brake.release()
    brake.close()


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_stop_that_returns_after_the_next_reset_leaves_the_guard_armed(is_rebuilt, monkeypatch):
    begun, may_return, guard = threading.Event(), threading.Event(), Mock()
    env = SimpleNamespace(
        stop=lambda: begun.set() or may_return.wait(), stop_from_outside="from outside"
    )
    old = new = Brake(env, guard, threading.Event())
    old.release()
    old.pull_soon()
    begun.wait()
    if is_rebuilt:
        new = Brake(env, guard, threading.Event())
        with monkeypatch.context() as patch:
            patch.setattr("tmrl_like.envs.brake.STOPS_WITHIN_S", 0.01)
            old.close()
    new.release()
    may_return.set()
    new.close()
    until(lambda: "tmrl-brake" not in [thread.name for thread in threading.enumerate()])
    outside = call("from outside")
    assert guard.call_at_end.mock_calls == [outside, outside, call(None)]
