"""What moves is stopped by the environment's `stop`, once, however a worker ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from kit.waiting import until
from moving import Moving, WithDevice
from said import say
from test_generic import Interface

from tmrl_like.base.processes import is_alive
from tmrl_like.envs.real_time import RealTimeEnv
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv
from tmrl_like.errors import EnvironmentFaultError
from tmrl_like.networking import RolloutWorker
from tmrl_like.testing.fakes import CountingEnv, LinearActor
from tmrl_like.worker.options import WorkerOptions

WITHIN_S = 0.05
BUSY_S = 1.0
HANG_S = 0.4
TRIES = 2


def words(file: Path) -> list[str]:
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


def time_of(file: Path, word: str) -> float:
    return float(next(line.split()[1] for line in file.read_text().splitlines() if line.startswith(f"{word} ")))


def counted_stops(file: Path) -> int:
    return sum(word.startswith("stopped") for word in words(file))


def in_time(once: Callable[[Path], float], folder: Path, figure: Callable[[str], None]) -> None:
    """Do it again until it was in time, as a machine with nothing else to do is; a busy one has longer."""
    took_s = []
    for number in range(TRIES):
        took_s.append(once(folder / f"{number}.txt"))
        if took_s[-1] < WITHIN_S:
            break
    figure(f"stopped after {1e3 * min(took_s):.1f} ms")
    assert min(took_s) < BUSY_S


class Raising(Moving):
    """Raises somewhere, and says when."""

    def __init__(self, file: str, where: str) -> None:
        super().__init__(file)
        self.where = where

    def reset(self, **options: Any) -> Any:
        if self.where == "reset" and self.total_steps:
            say_and_raise(self.file)
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        if self.where == "step" and self.total_steps == 7:
            say_and_raise(self.file)
        return super().step(action)


def say_and_raise(file: str) -> None:
    say(file, "raises")
    raise RuntimeError("the motor is on fire")


class RaisingActor(LinearActor):
    """Raises in its eighth step, where it was told the file to say so in."""

    file = ""
    calls = 0

    def act(self, obs: Any, test: bool = False) -> Any:
        self.calls += 1
        if self.file and self.calls == 8:
            say_and_raise(self.file)
        return np.zeros(1, np.float32)


@pytest.mark.fault("robots", "policy or environment raises", "what moves is stopped at once, only once, then closed")
@pytest.mark.parametrize("where", ["act", "step", "reset"])
def test_what_raises_stops_what_moves(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> None:
    monkeypatch.setattr("tmrl_like.envs.supervision._MAX_FAULTS_IN_A_ROW", 1)

    def once(file: Path) -> float:
        monkeypatch.setattr(RaisingActor, "file", str(file) if where == "act" else "")
        env = partial(Raising, str(file), where)
        with (
            RolloutWorker(env, RaisingActor, standalone=True, model_path=None) as worker,
            pytest.raises((RuntimeError, EnvironmentFaultError), match="on fire"),
        ):
            worker.run_episodes(nb_episodes=3)
        said = words(file)
        assert said[said.index("raises") :] == ["raises", "stopped", "closed"]
        assert said.count("stopped") == 1
        return time_of(file, "stopped") - time_of(file, "raises")

    in_time(once, tmp_path, figure)


@pytest.mark.fault("robots", "an environment hangs while it moves something", "that is stopped when the hang is known")
def test_what_hangs_is_stopped_when_the_hang_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> None:
    monkeypatch.setattr("tmrl_like.envs.supervision._MAX_FAULTS_IN_A_ROW", 1)
    monkeypatch.setattr("tmrl_like.envs.supervision._CLOSE_WITHIN_S", 0.3)
    options = WorkerOptions(hang_timeout_s=HANG_S)

    def once(file: Path) -> float:
        env = partial(Moving, str(file), "hangs")
        with (
            RolloutWorker(env, LinearActor, standalone=True, model_path=None, options=options) as worker,
            pytest.raises(EnvironmentFaultError, match="hangs"),
        ):
            worker.run_episodes(nb_episodes=3)
        assert counted_stops(file) == 1
        return time_of(file, "stopped") - time_of(file, "hangs") - HANG_S

    in_time(once, tmp_path, figure)


@pytest.mark.fault("robots", "a process that an environment needs is killed, or stands still", "what moves is stopped")
@pytest.mark.skipif(os.name != "posix", reason="SIGSTOP")
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_without_its_device_what_moves_is_stopped(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> None:
    monkeypatch.setattr("tmrl_like.envs.supervision._MAX_FAULTS_IN_A_ROW", 1)
    options = WorkerOptions(hang_timeout_s=HANG_S)
    waits_s = HANG_S if how == "SIGSTOP" else 0.0

    def once(file: Path) -> float:
        done_at: list[float] = []

        def harm() -> None:
            if worker.env.total_steps == 5 and not done_at:
                done_at.append(time.monotonic())
                worker.env.device.send_signal(getattr(signal, how))

        env = partial(WithDevice, str(file))
        with (
            RolloutWorker(env, LinearActor, standalone=True, model_path=None, options=options) as worker,
            pytest.raises(EnvironmentFaultError, match=r"Broken pipe|gone|hangs"),
        ):
            worker.run_episode(after_step=harm)
        assert words(file)[-3:] == ["moves", "stopped", "closed"]
        return time_of(file, "stopped") - done_at[0] - waits_s

    in_time(once, tmp_path, figure)


@pytest.fixture
def start(tmp_path: Path):
    """Start a worker in a process of its own; returns when it moves."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(file: Path, kind: str = "Moving", what: str = "drives") -> subprocess.Popen[bytes]:
        folder = Path(__file__).parent
        path = os.pathsep.join([str(folder), *filter(None, sys.path)])
        command = [sys.executable, str(folder / "moving.py"), str(file), kind, what]
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.DEVNULL)
        started.append(process)
        awaited = "hangs" if what == "hangs" else "moves"
        while awaited not in words(file):
            assert process.poll() is None
            time.sleep(0.01)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.fault("processes", "a worker gets SIGTERM or Ctrl-C, and its step hangs", "what moves is stopped at once")
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("what", ["drives", "hangs"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_stops_what_moves(name: str, what: str, tmp_path: Path, start: Any, figure: Any) -> None:
    def once(file: Path) -> float:
        process = start(file, what=what)
        time.sleep(0.1)
        before = counted_stops(file)
        asked_at = time.monotonic()
        process.send_signal(getattr(signal, name))
        process.wait()
        said = words(file)
        assert counted_stops(file) == before + 1
        assert "moves" not in said[said.index("stopped") :]
        return time_of(file, "stopped") - asked_at

    in_time(once, tmp_path, figure)


@pytest.mark.fault("processes", "a worker is killed while it moves something", "the guard's process stops that, once")
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
@pytest.mark.parametrize("kind", ["Remote", "WithDevice"])
def test_a_killed_worker_is_stopped_from_outside(
    kind: str, tmp_path: Path, start: Any, figure: Any, until: Callable[..., object]
) -> None:
    def once(file: Path) -> float:
        process = start(file, kind)
        time.sleep(1.0)  # the guard has imported the function, or looked for the device
        started = psutil.Process(process.pid).children(recursive=True)
        killed_at = time.monotonic()
        process.kill()
        process.wait()
        until(lambda: not any(map(is_alive, started)))
        assert counted_stops(file) == 1
        return time_of(file, "stopped-from-outside" if kind == "Remote" else "stopped") - killed_at

    in_time(once, tmp_path, figure)


def test_after_an_end_in_order_nothing_is_stopped_a_second_time(tmp_path: Path, start: Any) -> None:
    file = tmp_path / "said.txt"
    assert start(file, "Remote", "ends").wait() == 0
    assert words(file) == ["made", "moves", "moves", "stopped", "closed"]


def test_each_run_is_stopped_once_and_the_next_reset_moves_again(tmp_path: Path) -> None:
    file = tmp_path / "said.txt"
    with RolloutWorker(partial(Moving, str(file)), LinearActor, standalone=True, model_path=None) as worker:
        worker.run_episodes(nb_episodes=2)
        worker.run_episode()
        worker.measure(5)
        assert words(file) == ["made", *["moves", "moves", "stopped"], *["moves", "stopped"] * 2]
        obs, _ = worker.reset(collect_samples=False)
        worker.step(obs, test=True, collect_samples=False)
    assert words(file)[-3:] == ["moves", "stopped", "closed"]


def test_what_was_stopped_takes_no_step_before_the_next_reset(tmp_path: Path) -> None:
    file = tmp_path / "said.txt"
    env = SupervisedEnv(partial(Moving, str(file)))
    env.run(env.reset)
    env.stopping.set()
    with pytest.raises(StoppedError):
        while True:
            env.run(lambda: env.step(np.zeros(1, np.float32)))
    with pytest.raises(StoppedError):
        env.run(env.reset)
    env.stopping.clear()
    env.run(env.reset)
    env.run(lambda: env.step(np.zeros(1, np.float32)))
    env.close()
    assert words(file) == ["made", "moves", "stopped", "moves", "stopped", "closed"]


class Arm(Interface):
    """Counts what it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.when_seen: Callable[[], object] = int

    def send_control(self, control: Any) -> None:
        self.said.append("sent")

    def get_obs_rew_terminated_info(self) -> Any:
        self.when_seen()
        return super().get_obs_rew_terminated_info()

    def stop(self) -> None:
        self.said.append("stopped")


def test_an_interface_that_was_stopped_within_a_time_step_is_sent_nothing_more() -> None:
    env = SupervisedEnv(partial(RealTimeEnv, Arm, time_step_duration=0.01))
    env.run(env.reset)
    arm, action = env.env.unwrapped.interface, env.default_action
    said = arm.said

    def stop() -> None:
        env.stopping.set()
        until(lambda: "stopped" in said)

    arm.when_seen = stop
    env.run(lambda: env.step(action))  # which ends as ever
    assert said == ["sent", "stopped"]
    arm.when_seen = int
    env.stopping.clear()
    env.run(env.reset)
    env.run(lambda: env.step(action))
    env.close()
    assert said == ["sent", "stopped", "sent", "sent", "stopped"]


class StubbornArm(Arm):
    def stop(self) -> None:
        raise ConnectionError("no answer")


def test_an_interface_whose_stop_fails_is_driven_again_after_the_next_reset() -> None:
    env = SupervisedEnv(partial(RealTimeEnv, StubbornArm, time_step_duration=0.01), hang_timeout_s=10.0)
    env.run(env.reset)
    env.brake.pull()
    env.run(env.reset)
    env.run(lambda: env.step(env.default_action))
    assert env.env.unwrapped.interface.said[-1] == "sent"
    env.close()


class Stubborn(CountingEnv):
    """Cannot be stopped."""

    def stop(self) -> None:
        raise ConnectionError("no answer")


def test_a_stop_that_fails_is_a_line_and_the_worker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with RolloutWorker(Stubborn, LinearActor, standalone=True, model_path=None) as worker:
        assert len(worker.run_episodes(nb_episodes=2)) == 2
    assert [line for line in caplog.messages if "stop()" in line] == [
        "the environment's stop() failed: ConnectionError: no answer"
    ]


class Hung(CountingEnv):
    """Its `stop` does not come back."""

    free = threading.Event()

    def stop(self) -> None:
        self.free.wait()


def test_a_stop_that_hangs_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmrl_like.envs.brake._STOPS_WITHIN_S", 0.05)
    with RolloutWorker(Hung, LinearActor, standalone=True, model_path=None) as worker:
        assert len(worker.run_episodes(nb_episodes=1)) == 1
    Hung.free.set()


def test_without_a_stop_there_is_no_thread_and_no_process() -> None:
    before = set(threading.enumerate())
    env = SupervisedEnv(CountingEnv)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "tmrl-brake"]
    assert not env.brake.exists
    env.close()
