"""What the worker adds to a control loop, and which deadlines it misses while everything around it fails.

    python tests/benchmarks/control_loop.py [--only flat small images slow drone rate] [--seconds 10] [--cut 30]
                                            [--drone-minutes 10 1 1] [--rate-minutes 5] [--realtime-priority 10]

Server, trainer and worker are three processes on this machine, encrypted.

*flat*: an environment that takes no time. *small*, *images*, *slow*: an environment on a clock of its own (200 Hz,
200 Hz with 4x64x64 pictures, 20 Hz), while server and trainer are stopped, killed and started again, while the link
is dead, and while 10 MB of weights arrive every second. The bare environment is stepped with a constant action,
alone, before and after the run. *drone*: rtgym's drone at 20, 100 and 200 Hz, with a trainer that computes all the
time; its bare environment runs beside an equally busy process. *rate*: our real-time environment at 500 and 1,000 Hz
beside such a process, with a shipped actor, and once more with pictures while 10 MB of weights arrive every second; a
bare loop that sleeps and spins takes turns with it, in the same thread, an episode each.

A deadline is missed when an observation reaches the agent more than a fifth of a time-step after it was due, and lost
when it is a whole one; the drone's overruns are rtgym's: a step that takes twice its time. *Outside* is what a step
takes beside `env.step` and the actor: from one return of `env.step` to the next call, minus `act_`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import math
import multiprocessing as mp
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from _common import finish
from gymnasium import spaces
from rtgym import RealTimeGymInterface

from tmrl_like.envs.clock import Clock, bounded_spin_s
from tmrl_like.envs.drone import DroneEnv
from tmrl_like.envs.real_time import RealTimeEnv
from tmrl_like.policies.actor import ActorModule
from tmrl_like.worker.options import WorkerOptions
from tmrl_like.worker.timing import StepTimes
from tmrl_like.worker.timing import run_bare as run_bare_loop

sys.path.append(str(Path(__file__).parents[1]))
from link_proxy import LinkProxy

CONFIG = Path(__file__).parents[2] / "config" / "drone.yaml"
SPAWN = mp.get_context("spawn")
LATE_SHARE = 0.2  # of a time-step
WEIGHTS_WIDTH = 1600  # width**2 float32: 10 MB


@dataclass(frozen=True)
class Kind:
    """An environment and what goes with it."""

    hz: float
    observation: spaces.Space[Any]
    episode_steps: int = 1000


KINDS = {
    "small": Kind(200.0, spaces.Box(-1.0, 1.0, (8,), np.float32)),
    "images": Kind(200.0, spaces.Box(0, 255, (4, 64, 64), np.uint8)),
    "slow": Kind(20.0, spaces.Box(-1.0, 1.0, (8,), np.float32), 100),
}


class Clocked(gymnasium.Env[Any, Any]):
    """Ticks on its own clock, whatever the agent does; notes when it was called and when it returned."""

    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, kind: Kind, record: Record) -> None:
        self.observation_space = kind.observation
        self.time_step_s = 1.0 / kind.hz
        self._record = record
        self._episode_steps = kind.episode_steps
        self._step = 0
        self._due = time.perf_counter()
        generator = np.random.default_rng(0)
        self._observations = [
            np.asarray(generator.integers(0, 255, kind.observation.shape)).astype(kind.observation.dtype)
            for _ in range(16)
        ]

    def reset(self, **_: Any) -> Any:
        self._record.reset_called.append(time.perf_counter())
        self._step = 0
        self._due = time.perf_counter()
        return self._observations[0], {}

    def step(self, action: Any) -> Any:
        called = time.perf_counter()
        self._due += self.time_step_s
        if self._due > called:
            time.sleep(self._due - called)
        now = time.perf_counter()
        late_s = now - self._due
        if late_s > self.time_step_s:
            self._due = now
        self._step += 1
        ended = self._step >= self._episode_steps
        record = self._record
        record.called.append(called)
        record.late_s.append(late_s)
        record.returned.append(time.perf_counter())
        return self._observations[self._step % 16], 0.0, ended, False, {}


@dataclass
class Record:
    """Times of `time.perf_counter`, the same clock in all processes."""

    called: array[float] = field(default_factory=lambda: array("d"))
    returned: array[float] = field(default_factory=lambda: array("d"))
    late_s: array[float] = field(default_factory=lambda: array("d"))
    reset_called: array[float] = field(default_factory=lambda: array("d"))
    act_s: array[float] = field(default_factory=lambda: array("d"))

    def save(self, path: Path) -> None:
        np.savez(path, **{name: np.array(values) for name, values in vars(self).items()})


class TimedActor(ActorModule):
    """10 MB of weights; its action ignores the observation, so that inference does not blur the figures."""

    record = Record()

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space)
        self.ballast = torch.nn.Parameter(torch.zeros(WEIGHTS_WIDTH, WEIGHTS_WIDTH))
        self.head = torch.nn.Linear(8, 2)

    def act(self, obs: Any, test: bool = False) -> Any:
        pixels = obs[0] if isinstance(obs, tuple) else obs
        return torch.tanh(self.head(pixels.reshape(1, -1)[:, :8].float())).numpy()

    def act_(self, obs: Any, test: bool = False) -> Any:
        started = time.perf_counter()
        action = super().act_(obs, test)
        self.record.act_s.append(time.perf_counter() - started)
        return action


# -- processes -------------------------------------------------------------------------------------


def run_server(keys: Path, port: int, pipe: Any) -> None:
    from tmrl_like.networking import Server

    with Server(port, host="127.0.0.1", keys_dir=keys) as server:
        pipe.send(server.address[1])
        with contextlib.suppress(EOFError):
            pipe.recv()


def run_trainer(keys: Path, port: int, kind: Kind, pipe: Any) -> None:
    """Takes samples as they come; publishes 10 MB once a second when told to."""
    from tmrl_like.trainer.link import TrainerLink
    from tmrl_like.transport import KeyFolder, connect
    from tmrl_like.wire.spaces import describe_spaces

    torch.set_num_threads(1)
    actor = TimedActor(kind.observation, Clocked.action_space)
    link = TrainerLink(
        connect("zmq", "127.0.0.1", port, KeyFolder(keys)),
        "bench",
        "t",
        describe_spaces(kind.observation, Clocked.action_space),
    )
    link.session.wait_connected(20)
    pipe.send("ready")
    publishing, published_at, samples = False, 0.0, 0
    while True:
        if pipe.poll():
            word = pipe.recv()
            if word == "end":
                break
            publishing = word == "publish"
        if publishing and time.monotonic() - published_at >= 1.0:
            published_at = time.monotonic()
            link.broadcast_model(actor)
        deliveries = link.retrieve(0.05)
        samples += sum(len(d.buffer) for d in deliveries)
        link.confirm(deliveries)
    pipe.send(samples)
    link.close()


def run_worker(keys: Path, port: int, kind: Kind, priority: int | None, file: Path, pipe: Any) -> None:
    from tmrl_like.networking import RolloutWorker

    torch.set_num_threads(1)
    with RolloutWorker(
        partial(Clocked, kind, TimedActor.record),
        TimedActor,
        server_ip="127.0.0.1",
        server_port=port,
        keys_dir=keys,
        model_path=None,
        max_samples_per_episode=kind.episode_steps,
        options=WorkerOptions(realtime_priority=priority),
    ) as worker:
        worker.wait_connected(20)
        pipe.send("ready")
        threading.Thread(target=_stop_when_told, args=(pipe, worker.stop), daemon=True).start()
        worker.run(verbose=False)
        TimedActor.record.save(file)
        pipe.send((worker.policy_version, worker.loop.env_steps))


def run_flat(kind: Kind, episodes: int, file: Path, pipe: Any) -> None:
    """A worker whose environment takes no time; nobody takes its samples."""
    from tmrl_like.networking import RolloutWorker

    torch.set_num_threads(1)
    env_cls = partial(Clocked, kind, TimedActor.record)
    with RolloutWorker(env_cls, TimedActor, model_path=None, standalone=True) as worker:
        worker.run(nb_episodes=episodes, verbose=False)
    TimedActor.record.save(file)
    pipe.send("done")


def run_bare(kind: Kind, seconds: float, priority: int | None, file: Path, pipe: Any) -> None:
    """The environment alone, scheduled like the worker."""
    from tmrl_like.worker.realtime import real_time

    record = Record()
    env = Clocked(kind, record)
    with real_time(threading.get_native_id(), priority=priority):
        _step_alone(env, np.zeros(2, np.float32), seconds)
    record.save(file)
    pipe.send("done")


class Still(RealTimeGymInterface):  # type: ignore[misc]
    """Takes no time, whatever it is asked."""

    def __init__(self, observation: spaces.Box) -> None:
        self._space = observation
        self._observation = np.zeros(observation.shape, observation.dtype)

    def get_observation_space(self) -> Any:
        return spaces.Tuple((self._space,))

    def get_action_space(self) -> Any:
        return Clocked.action_space

    def get_default_action(self) -> Any:
        return np.zeros(2, np.float32)

    def send_control(self, control: Any) -> None:
        pass

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return [self._observation], {}

    def get_obs_rew_terminated_info(self) -> Any:
        return [self._observation], 0.0, False, {}


def still_env(kind: Kind) -> RealTimeEnv:
    assert isinstance(kind.observation, spaces.Box)
    interface = partial(Still, kind.observation)
    return RealTimeEnv(interface, 1 / kind.hz, kind.episode_steps, act_buf_len=1, wait_on_done=False)


def run_rate_worker(
    keys: Path, port: int, kind: Kind, with_weights: bool, seconds: float, priority: int | None, pipe: Any
) -> None:
    """A worker's episode, then as many steps of a bare loop, and so on; sends what is late of each."""
    from tmrl_like.agents.in_numpy import SquashedGaussianActor
    from tmrl_like.networking import RolloutWorker
    from tmrl_like.worker.realtime import real_time

    max_steps = 2 * round(seconds * kind.hz)
    with RolloutWorker(
        partial(still_env, kind),
        TimedActor if with_weights else SquashedGaussianActor,
        server_ip="127.0.0.1",
        server_port=port,
        keys_dir=keys,
        model_path=None,
        options=WorkerOptions(realtime_priority=priority),
    ) as worker:
        worker.wait_connected(20)
        pipe.send("ready")
        env, loop = worker.loop.env, worker.loop
        times, floor = (StepTimes(max_steps, env.time_step_s, env.overrun_after_s) for _ in range(2))
        observe, step = env.step, 0

        def noted(action: Any) -> Any:
            nonlocal step
            before, called = loop.observed_at, time.perf_counter()
            result = observe(action)
            observed = time.perf_counter()
            if step:  # the first period of an episode has a reset before it
                times.add(observed - before, 0.0, observed - called)
            step += 1
            return result

        env.step = noted  # type: ignore[method-assign]
        clock = Clock(bounded_spin_s(env.time_step_s))

        def run_floor(_: Any) -> None:
            with real_time(env.thread_id, priority=priority):
                run_bare_loop(clock, floor, step, lambda: False)

        while times.steps < seconds * kind.hz:
            step = 0
            worker.run(nb_episodes=1, verbose=False)
            worker.run_in_control_thread(run_floor)
        pipe.send((times.period_error_s, times.overruns, floor.period_error_s, floor.overruns, worker.policy_version))


def measure_rate(hz: float, minutes: float, priority: int | None, with_weights: bool = False) -> dict[str, Any]:
    observation = KINDS["images" if with_weights else "small"].observation
    kind = Kind(hz, observation, round(hz))
    with tempfile.TemporaryDirectory() as home:
        keys = Path(home) / "keys"
        server, busy = Process(run_server, (keys, 0)), Process(run_busy, ())
        port = server.answer()
        seen = Kind(hz, still_env(kind).observation_space)
        trainer = Process(run_trainer, (keys, port, seen))
        trainer.answer()
        busy.answer()
        if with_weights:
            trainer.pipe.send("publish")
        worker = Process(run_rate_worker, (keys, port, kind, with_weights, 60 * minutes, priority))
        worker.answer()
        late, overruns, bare_late, bare_overruns, policies = worker.answer(180 * minutes + 60)
        for process in (worker, trainer, busy, server):
            process.end()
    name = f"rate_{hz:g}Hz" + "_10MB_of_weights_a_second" * with_weights
    result: dict[str, Any] = {f"{name}_steps": len(late), f"{name}_policies": policies}
    for whose, errors, missed in (("", late, overruns), ("bare_", bare_late, bare_overruns)):
        result[f"{name}_{whose}overruns_per_1000"] = 1e3 * missed / len(errors)
        for q in (50, 99, 99.9):
            result[f"{name}_{whose}period_error_p{q:g}_us"] = float(np.percentile(errors, q)) * 1e6
        result[f"{name}_{whose}later_than_1ms_per_1000"] = 1e3 * float(np.mean(errors > 1e-3))
    return result


class RecordedDrone(DroneEnv):
    """Notes when its steps return."""

    def __init__(self, hz: float) -> None:
        super().__init__(time_step_duration=1 / hz, ep_max_length=int(5 * hz))
        self.steps: list[tuple[float, bool]] = []  # when, whether it was a reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self.steps.append((time.perf_counter(), True))
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = super().step(action)
        self.steps.append((time.perf_counter(), False))
        return result

    def save(self, file: Path) -> None:
        """Write the gaps between observations of one episode, in seconds, and the rate of steps."""
        times = np.array([when for when, _ in self.steps])
        resets = np.array([reset for _, reset in self.steps])
        gaps = np.diff(times)[~resets[1:]]
        np.savez(file, gaps=gaps, overruns=np.sum(gaps >= 0.99 * (self.overrun_after_s or 0.0)))


def run_drone_worker(port: int, keys: Path, hz: float, priority: int | None, file: Path, pipe: Any) -> None:
    from tmrl_like.cli.worker import PARTS, make_worker
    from tmrl_like.config.loading import load_experiment

    torch.set_num_threads(1)
    experiment = dataclasses.replace(load_experiment(CONFIG, parts=PARTS), env=partial(RecordedDrone, hz))
    options = {"server_port": port, "keys_dir": keys, "options": WorkerOptions(realtime_priority=priority)}
    with make_worker(experiment, **options) as worker:
        worker.wait_connected(20)
        pipe.send("ready")
        threading.Thread(target=_stop_when_told, args=(pipe, worker.stop), daemon=True).start()
        worker.run(verbose=False)
        worker.env.save(file)
        pipe.send((worker.policy_version, worker.loop.env_steps, worker.loop.overruns))


def run_bare_drone(hz: float, seconds: float, priority: int | None, file: Path, pipe: Any) -> None:
    from tmrl_like.worker.realtime import real_time

    env = RecordedDrone(hz)
    with real_time(threading.get_native_id(), priority=priority):
        _step_alone(env, np.zeros(2, np.float32), seconds)
    env.save(file)
    pipe.send("done")


def run_busy(pipe: Any) -> None:
    """As busy as the drone's trainer."""
    from tmrl_like.agents import SACAgent, SquashedGaussianActor
    from tmrl_like.types import Batch

    torch.set_num_threads(1)
    observation = spaces.Box(-1.0, 1.0, (12,), np.float32)
    actor_cls = partial(SquashedGaussianActor, hidden_sizes=(64, 64))
    agent = SACAgent(observation, Clocked.action_space, "cpu", actor_cls=actor_cls)
    obs, act, flag = torch.randn(128, 12), torch.randn(128, 2), torch.zeros(128)
    pipe.send("ready")
    while not pipe.poll():
        agent.train(Batch(obs, act, flag, obs, flag, flag))


def _step_alone(env: Any, action: Any, seconds: float) -> None:
    until = time.perf_counter() + seconds
    ended = True
    while time.perf_counter() < until:
        if ended:
            env.reset()
        _, _, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated


def _quietly(target: Callable[..., None], *args: Any) -> None:
    """Overruns are counted here; rtgym and the worker need not tell each."""
    warnings.filterwarnings("ignore", message="Time-step timed out")
    logging.getLogger("tmrl_like").setLevel(logging.ERROR)
    target(*args)


def _stop_when_told(pipe: Any, stop: Callable[[], None]) -> None:
    with contextlib.suppress(EOFError):
        pipe.recv()
    stop()


@dataclass
class Process:
    """A process and the pipe to it."""

    target: Callable[..., None]
    args: tuple[Any, ...]

    def __post_init__(self) -> None:
        self.pipe, child = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_quietly, args=(self.target, *self.args, child), daemon=True)
        self.process.start()
        self.pid = self.process.pid or 0

    def ask(self, word: str, within_s: float = 20.0) -> Any:
        self.pipe.send(word)
        return self.answer(within_s)

    def answer(self, within_s: float = 60.0) -> Any:
        if not self.pipe.poll(within_s):
            raise RuntimeError(f"{self.target.__name__} does not answer")
        return self.pipe.recv()

    def end(self) -> None:
        self.process.kill()
        self.process.join(10)


# -- runs ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stopped(process: Process) -> Iterator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def run_disturbed(kind: Kind, folder: Path, seconds: float, cut_s: float, priority: int | None) -> dict[str, Any]:
    """One worker through all disturbances; returns its times and which phase was when."""
    keys, file = folder / "keys", folder / "worker.npz"
    server = Process(run_server, (keys, 0))
    port = server.answer()
    with LinkProxy("127.0.0.1", port) as proxy:
        trainer = Process(run_trainer, (keys, port, kind))
        worker = Process(run_worker, (keys, proxy.port, kind, priority, file))
        trainer.answer()
        worker.answer()
        phases: dict[str, tuple[float, float]] = {}

        @contextlib.contextmanager
        def phase(name: str) -> Iterator[None]:
            started = time.perf_counter()
            yield
            time.sleep(2.0)  # what was held back flows again
            phases[name] = started, time.perf_counter()

        time.sleep(2.0)
        with phase("quiet"):
            time.sleep(seconds)
        with phase("server_stopped_5s"), stopped(server):
            time.sleep(5.0)
        with phase("trainer_stopped_5s"), stopped(trainer):
            time.sleep(5.0)
        with phase(f"link_dead_{cut_s:g}s"):
            proxy.freeze()
            time.sleep(cut_s)
            proxy.thaw()
            time.sleep(3.0)
        with phase("server_killed_and_restarted"):
            server.end()
            time.sleep(1.0)
            server = Process(run_server, (keys, port))
            server.answer()
            time.sleep(4.0)
        trainer.pipe.send("publish")
        with phase("10MB_of_weights_a_second"):
            time.sleep(seconds)
        version, steps = worker.ask("stop")
        samples = trainer.ask("end")
        for process in (worker, trainer, server):
            process.end()
    return {"phases": phases, "times": dict(np.load(file)), "version": version, "steps": steps, "samples": samples}


def run_bare_once(kind: Kind, folder: Path, seconds: float, priority: int | None) -> dict[str, Any]:
    file = folder / "bare.npz"
    bare = Process(run_bare, (kind, seconds, priority, file))
    bare.answer(seconds + 60)
    bare.end()
    return dict(np.load(file))


def outside_us(times: dict[str, Any]) -> tuple[Any, Any]:
    """For each step but the first of an episode: when it was called, and microseconds outside env and actor."""
    called, returned, act_s = times["called"], times["returned"], times["act_s"]
    n = min(len(called), len(act_s))
    gaps = called[1:n] - returned[: n - 1] - act_s[1:n]
    between = np.searchsorted(times["reset_called"], called[1:n]) == np.searchsorted(
        times["reset_called"], returned[: n - 1]
    )
    return called[1:n][between], gaps[between] * 1e6


def between_episodes_us(times: dict[str, Any]) -> Any:
    """From the last return of an episode's `env.step` to the call of `env.reset`, in microseconds."""
    resets = times["reset_called"][1:]
    last = np.searchsorted(times["returned"], resets) - 1
    return (resets - times["returned"][last]) * 1e6


def summary(name: str, kind: Kind, run: dict[str, Any], bare: list[dict[str, Any]]) -> dict[str, Any]:
    limit_s = LATE_SHARE / kind.hz
    result: dict[str, Any] = {}
    bare_late = np.concatenate([times["late_s"] for times in bare])
    result[f"{name}_bare_misses_per_1000"] = 1e3 * float(np.mean(bare_late > limit_s))
    result[f"{name}_bare_lost_per_1000"] = 1e3 * float(np.mean(bare_late > 1 / kind.hz))
    result[f"{name}_bare_steps"] = len(bare_late)
    result[f"{name}_bare_late_p99.9_ms"] = float(np.percentile(bare_late, 99.9)) * 1e3
    called, outside = outside_us(run["times"])
    step_called, late = run["times"]["called"], run["times"]["late_s"]
    for phase, (start, end) in {**run["phases"], "all": (0.0, float("inf"))}.items():
        own = outside[(called >= start) & (called < end)]
        own_late = late[(step_called >= start) & (step_called < end)]
        for q in (50, 99.9):
            result[f"{name}_{phase}_outside_p{q:g}_us"] = float(np.percentile(own, q))
        result[f"{name}_{phase}_outside_max_us"] = float(own.max())
        result[f"{name}_{phase}_misses_per_1000"] = 1e3 * float(np.mean(own_late > limit_s))
        result[f"{name}_{phase}_lost_per_1000"] = 1e3 * float(np.mean(own_late > 1 / kind.hz))
        result[f"{name}_{phase}_lost"] = int(np.sum(own_late > 1 / kind.hz))
    gaps = between_episodes_us(run["times"])
    result[f"{name}_between_episodes_p50_us"] = float(np.median(gaps))
    result[f"{name}_between_episodes_max_us"] = float(gaps.max())
    result[f"{name}_policies_driven"] = run["version"]
    result[f"{name}_steps"] = run["steps"]
    result[f"{name}_samples_at_trainer"] = run["samples"]
    return result


def measure(name: str, seconds: float, cut_s: float, priority: int | None) -> dict[str, Any]:
    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        bare = [run_bare_once(kind, folder, 2 * seconds, priority)]
        run = run_disturbed(kind, folder, seconds, cut_s, priority)
        bare.append(run_bare_once(kind, folder, 2 * seconds, priority))
    return summary(name, kind, run, bare)


def measure_flat(episodes: int = 20) -> dict[str, Any]:
    result = {}
    for name in ("small", "images"):
        with tempfile.TemporaryDirectory() as home:
            file = Path(home) / "flat.npz"
            worker = Process(run_flat, (dataclasses.replace(KINDS[name], hz=math.inf), episodes, file))
            worker.answer()
            worker.end()
            _, outside = outside_us(dict(np.load(file)))
        for q in (50, 99.9):
            result[f"flat_{name}_outside_p{q:g}_us"] = float(np.percentile(outside, q))
    return result


@contextlib.contextmanager
def drone_trainer(folder: Path, port: int) -> Iterator[None]:
    """`tmrl-like trainer` as a user starts it, but with nothing that would make it pause."""
    command = [sys.executable, "-m", "tmrl_like", "trainer", str(CONFIG), "--server.port", str(port)]
    command += ["--server.keys_dir", str(folder / "keys"), "--trainer.epochs", ".inf", "--trainer.max_minutes", "100"]
    command += ["--trainer.max_training_steps_per_env_step", "1e6", "--trainer.torch_threads", "1"]
    environment = {**os.environ, "TMRL_LIKE_HOME": str(folder)}
    with (folder / "trainer.log").open("w") as log:
        trainer = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield
        if trainer.poll() is not None:
            raise RuntimeError((folder / "trainer.log").read_text()[-2000:])
    finally:
        trainer.kill()
        trainer.wait()


def bare_drone(folder: Path, hz: float, seconds: float, priority: int | None) -> dict[str, Any]:
    file = folder / "bare.npz"
    busy = Process(run_busy, ())
    busy.answer()
    bare = Process(run_bare_drone, (hz, seconds, priority, file))
    bare.answer(seconds + 60)
    bare.end()
    busy.end()
    return dict(np.load(file))


def measure_drone(hz: float, minutes: float, priority: int | None) -> dict[str, Any]:
    name = f"drone_{hz:g}Hz"
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        keys, file = folder / "keys", folder / "worker.npz"
        bare = [bare_drone(folder, hz, min(60.0, 30 * minutes), priority)]
        server = Process(run_server, (keys, 0))
        port = server.answer()
        with drone_trainer(folder, port):
            worker = Process(run_drone_worker, (port, keys, hz, priority, file))
            worker.answer()
            time.sleep(60 * minutes)
            version, steps, overruns = worker.ask("stop")
        own = dict(np.load(file))
        worker.end()
        server.end()
        bare.append(bare_drone(folder, hz, min(60.0, 30 * minutes), priority))
    bare_gaps = np.concatenate([run["gaps"] for run in bare])
    return {
        f"{name}_steps": steps,
        f"{name}_policies": version,
        f"{name}_overruns": overruns,
        f"{name}_overruns_per_1000": 1e3 * overruns / steps,
        f"{name}_bare_overruns_per_1000": 1e3 * float(sum(run["overruns"] for run in bare)) / len(bare_gaps),
        f"{name}_steps_per_s": 1 / float(np.mean(own["gaps"])),
        f"{name}_bare_steps_per_s": 1 / float(np.mean(bare_gaps)),
        f"{name}_gap_p99.9_ms": float(np.percentile(own["gaps"], 99.9)) * 1e3,
        f"{name}_bare_gap_p99.9_ms": float(np.percentile(bare_gaps, 99.9)) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the quiet phase and of the weights")
    parser.add_argument("--cut", type=float, default=30.0, help="seconds for which the link is dead")
    parser.add_argument("--drone-minutes", type=float, nargs=3, default=[10, 1, 1], help="at 20, 100 and 200 Hz")
    parser.add_argument("--realtime-priority", type=int, default=None, help="of the worker's control thread")
    parser.add_argument("--rate-minutes", type=float, default=5.0, help="at 500 and 1,000 Hz, of the worker")
    names = ["flat", *KINDS, "drone", "rate"]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    arguments = parser.parse_args()
    priority = arguments.realtime_priority
    runs: list[Callable[[], dict[str, Any]]] = []
    runs += [measure_flat] * ("flat" in arguments.only)
    runs += [partial(measure, k, arguments.seconds, arguments.cut, priority) for k in KINDS if k in arguments.only]
    if "drone" in arguments.only:
        for hz, minutes in zip((20.0, 100.0, 200.0), arguments.drone_minutes, strict=True):
            runs += [partial(measure_drone, hz, minutes, priority)] * bool(minutes)
    if "rate" in arguments.only:
        for hz, with_weights in ((500.0, False), (1000.0, False), (1000.0, True)):
            runs += [partial(measure_rate, hz, arguments.rate_minutes, priority, with_weights)]
    result: dict[str, Any] = {}
    for run in runs:
        own = run()
        print(json.dumps(own), flush=True)
        result |= own
    result |= {"goal_outside_p50_us": 15.0, "goal_outside_p99.9_us": 1000.0, "goal_between_episodes_us": 1000.0}
    finish(result)


if __name__ == "__main__":
    main()
