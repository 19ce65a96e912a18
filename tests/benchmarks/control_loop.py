"""What the worker adds to a control loop, and which deadlines it misses, beside a bare loop.

    python tests/benchmarks/control_loop.py [--only flat clocked weights images drone] [--seconds 10] [--cut 30]
                                            [--stop 5] [--minutes 5] [--drone-minutes 1] [--realtime-priority 10]

Server, trainer, worker and the worker's link are four processes on this machine, encrypted, and the trainer
computes all the time. The bare loop is a process with nothing else in it, scheduled like the worker.

*flat*, *clocked*, *drone*: worker and trainer as the commands make them of the drone's experiment. Every two seconds
it is the bare loop's turn. *flat* is an environment that computes for 0.1 ms, *clocked* our real-time environment at
500 and 1,000 Hz around an interface that takes no time; its bare loop sleeps and spins as it does. *drone*: at 200 Hz.
*weights*: as *clocked*, but with pictures of 4x64x64, an actor in torch, and 10 MB of weights every second.

*images*: an actor in torch and an environment on a clock of its own (200 Hz, pictures of 4x64x64), while server,
trainer and link are stopped or killed, while the network is dead, and while 10 MB of weights arrive every second. The
same environment is stepped bare, beside it.

An observation is late when it comes a fifth of a time-step after it was due, or more; a step is an overrun, as rtgym
counts, when it takes two time-steps. *Outside* is what a step takes beside `env.step` and `act_`: from one return of
`env.step` to the next call, minus `act_`; in the drone's experiment with the preprocessor of observations.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _common import CONFIG, SPAWN, Options, Part, finish, run_server
from _recorded import EPISODE_S, PICTURES, RECORD, Clocked, Flat, Kind, RecordedDrone, Ticking, TimedGaussian
from gymnasium import spaces

sys.path.append(str(Path(__file__).parents[1]))
from link_proxy import LinkProxy

LATE_SHARE = 0.2  # of a time-step
OVERRUN_SHARE = 2 * 0.99  # 1 %: the clock's own noise
SLICE_S = 2.0  # before it is the other one's turn
GOALS = {
    "goal_flat_act_p50_us": 12.0,
    "goal_flat_act_p99.9_us": 50.0,
    "goal_outside_p50_us": 4.0,
    "goal_outside_p99.9_us": 100.0,
    "goal_clocked_500Hz_overruns_per_1000": 1.0,
    "goal_clocked_1000Hz_overruns_per_1000": 5.0,
    "goal_with_priority_clocked_500Hz_overruns_per_1000": 0.01,
    "goal_with_priority_clocked_1000Hz_overruns_per_1000": 0.1,
    "goal_drone_overruns_per_1000_beyond_bare": 0.2,
}


@dataclass(frozen=True)
class Case:
    """What the worker steps, and what is stepped bare.

    Attributes:
        parts: of the drone's experiment.
        heavy: an actor with 10 MB of weights, in torch, in place of the drone's.
    """

    name: str
    hz: float
    env: Callable[[], Any]
    bare: Callable[[], Any]
    parts: tuple[str, ...] = ("env", "sample_compressor")
    heavy: bool = False


def flat() -> Case:
    return Case("flat", 1000.0, partial(Flat, 1000.0), partial(Flat, 1000.0))


def drone(hz: float) -> Case:
    parts = ("env", "sample_compressor", "obs_preprocessor")
    return Case(f"drone_{hz:g}Hz", hz, partial(RecordedDrone, hz), partial(RecordedDrone, hz), parts)


def clocked(hz: float, pictures: bool) -> Case:
    bare = Kind(hz, episode_steps=int(EPISODE_S * hz), spins=True)
    name = f"clocked_{hz:g}Hz" + pictures * "_pictures_and_weights"
    return Case(name, hz, partial(Clocked, hz, pictures), partial(Ticking, bare), heavy=pictures)


def ticking(name: str, kind: Kind) -> Case:
    return Case(name, kind.hz, partial(Ticking, kind), partial(Ticking, kind), heavy=True)


# -- processes -------------------------------------------------------------------------------------


def run_trainer(case: Case, keys: Path, port: int, pipe: Any) -> None:
    """As busy as the drone's trainer; takes samples as they come, publishes 10 MB once a second when told to."""
    import torch
    from _heavy_actor import HeavyActor

    from tmrl_like.agents import SACAgent, SquashedGaussianActor
    from tmrl_like.session.ring import connect_to_one
    from tmrl_like.trainer.trainer_link import TrainerLink
    from tmrl_like.transport import KeyFolder
    from tmrl_like.types import Batch
    from tmrl_like.wire.spaces import describe_spaces

    torch.set_num_threads(1)
    observation = spaces.Box(-1.0, 1.0, (12,), np.float32)
    actor_cls = partial(SquashedGaussianActor, hidden_sizes=(64, 64))
    agent = SACAgent(observation, Ticking.action_space, "cpu", actor_cls=actor_cls)
    obs, act, flag = torch.randn(128, 12), torch.randn(128, 2), torch.zeros(128)
    env = case.env()
    heavy = HeavyActor(env.observation_space, env.action_space)
    described = describe_spaces(env.observation_space, env.action_space)
    link = TrainerLink(connect_to_one("zmq", [f"127.0.0.1:{port}"], "", KeyFolder(keys)), "t", described)
    link.session.wait_connected(20)
    pipe.send("ready")
    publishing, published_at, samples = False, 0.0, 0
    while True:
        if pipe.poll():
            (word,) = pipe.recv()
            if word == "end":
                break
            publishing = word == "publish"
        if publishing and time.monotonic() - published_at >= 1.0:
            published_at = time.monotonic()
            link.broadcast_model(heavy)
        agent.train(Batch(obs, act, flag, obs, flag, flag))
        deliveries = link.retrieve()
        samples += sum(len(d.buffer) for d in deliveries)
        link.confirm(deliveries)
    pipe.send(samples)


def run_worker(case: Case, keys: Path, port: int, priority: int | None, file: Path, turns: Any, pipe: Any) -> None:
    """Step until told to stop; with `turns`, a pipe to the bare loop, in slices."""
    be_quiet()
    from tmrl_like.worker.options import WorkerOptions

    options = {"server_port": port, "keys_dir": keys, "options": WorkerOptions(realtime_priority=priority)}
    with (heavy_worker if case.heavy else drone_worker)(case, options) as worker:
        worker.wait_connected(20)
        if turns is not None:
            while not worker.policy_version:  # until the trainer computes
                worker.collect_train_episode(1000)
            RECORD.rows = 0
            RECORD.on_reset = partial(_take_turns, turns, [0, time.perf_counter()])
        pipe.send("ready")
        threading.Thread(target=_stop_when_told, args=(pipe, worker.stop), daemon=True).start()
        worker.run(verbose=False)
        RECORD.save(file)
        pipe.send((worker.policy_version, worker.condition().env_steps))


def drone_worker(case: Case, options: dict[str, Any]) -> Any:
    """As `tmrl-like worker` makes it, without torch."""
    from tmrl_like import load_experiment

    experiment = load_experiment(CONFIG, parts=case.parts)
    actor = partial(TimedGaussian, hidden_sizes=(64, 64))
    return experiment.make_worker(env_cls=case.env, actor_module_cls=actor, **options)


def heavy_worker(case: Case, options: dict[str, Any]) -> Any:
    """With 10 MB of weights, in torch."""
    import torch
    from _heavy_actor import HeavyActor

    from tmrl_like.networking import RolloutWorker

    torch.set_num_threads(1)
    return RolloutWorker(case.env, HeavyActor, server_ip="127.0.0.1", model_path=None, **options)


def _take_turns(bare: Any, begun: list[Any]) -> None:
    """In a reset: after a slice, have the bare loop do as many steps."""
    row, at = begun
    if time.perf_counter() - at >= SLICE_S:
        bare.send(RECORD.rows - row)
        bare.recv()
        begun[:] = RECORD.rows, time.perf_counter()


def run_bare(make_env: Callable[[], Any], priority: int | None, file: Path, turns: Any, pipe: Any) -> None:
    """The environment alone, scheduled like the worker, until told to stop.

    It does as many steps as `turns`, a pipe, says, and then answers; without it, it never waits.
    """
    from tmrl_like.worker.realtime import real_time

    be_quiet()
    env, action = make_env(), np.zeros(2, np.float32)
    with real_time(threading.get_native_id(), priority=priority):
        pipe.send("ready")
        while not pipe.poll():
            if turns is not None and not turns.poll(0.1):
                continue
            steps = 100 if turns is None else turns.recv()
            ended = True
            for _ in range(steps):
                if ended:
                    env.reset()
                _, _, terminated, truncated, _ = env.step(action)
                ended = terminated or truncated
            if turns is not None:
                turns.send("done")
    RECORD.save(file)
    pipe.send("saved")


def _stop_when_told(pipe: Any, stop: Callable[[], None]) -> None:
    with contextlib.suppress(EOFError):
        pipe.recv()
    stop()


def be_quiet() -> None:
    """Overruns are counted here; environment and worker need not report each."""
    warnings.filterwarnings("ignore", message="Time-step timed out")
    logging.getLogger("tmrl_like").setLevel(logging.ERROR)


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


def link_of(worker: Part) -> psutil.Process:
    """The process of the worker's link."""
    return next(p for p in worker.program.children() if "link_process.py" in " ".join(p.cmdline()))


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


# -- what the times say ----------------------------------------------------------------------------


Times = dict[str, Any]  # what a record saved


def within(times: Times, start: float, end: float) -> Times:
    chosen = (times["returned"] >= start) & (times["returned"] < end)
    return {name: values[chosen] for name, values in times.items()}


def late_s(times: Times, time_step_s: float) -> list[float]:
    """By how much each observation came after it was due.

    After a reset, and after an observation that came a whole time-step late, time-steps are counted from the
    observation on; and from an earlier one than that where observations come sooner.
    """
    late, due = [], 0.0
    is_first = np.isnan(times["act_s"])
    is_first[:1] = True
    for observed, first in zip(times["returned"], is_first, strict=True):
        due = observed if first else min(due + time_step_s, observed)
        if not first:
            late.append(observed - due)
            if observed - due >= time_step_s:
                due = observed
    return late


def describe(times: Times, time_step_s: float) -> dict[str, Any]:
    """Deadlines missed, errors of the period, and what the steps took outside; resets left out."""
    is_step = ~np.isnan(times["act_s"])
    periods_s = np.diff(times["returned"])[is_step[1:]]
    errors_us = 1e6 * np.abs(periods_s - time_step_s)
    outside_s = times["called"][1:] - times["returned"][:-1] - times["act_s"][1:]
    outside_us = 1e6 * outside_s[is_step[1:] & is_step[:-1]]
    overruns = int(np.sum(periods_s >= OVERRUN_SHARE * time_step_s))
    late = np.array(late_s(times, time_step_s))
    result: dict[str, Any] = {
        "steps": len(periods_s),
        "overruns": overruns,
        "overruns_per_1000": 1e3 * overruns / len(periods_s),
        "later_than_1ms_per_1000": 1e3 * float(np.mean(late >= 1e-3)),
        "late_per_1000": 1e3 * float(np.mean(late >= LATE_SHARE * time_step_s)),
    }
    act_us = 1e6 * times["act_s"][is_step]
    for name, values_us in (("period_error", errors_us), ("outside", outside_us), ("act", act_us)):
        for q in (50, 99, 99.9):
            result[f"{name}_p{q:g}_us"] = float(np.percentile(values_us, q))
        result[f"{name}_max_us"] = float(values_us.max())
    return result


def between_episodes_us(times: Times) -> Any:
    """From the last return of an episode's `env.step` to the call of `env.reset`, in microseconds."""
    resets = np.flatnonzero(np.isnan(times["act_s"]))[1:]
    return 1e6 * (times["called"][resets] - times["returned"][resets - 1])


def named(name: str, values: dict[str, Any], leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    return {f"{name}_{key}": value for key, value in values.items() if not key.startswith(leave_out)}


# -- runs ------------------------------------------------------------------------------------------


def measure_in_turns(case: Case, seconds: float, priority: int | None) -> dict[str, Any]:
    """Worker and bare loop step for so many seconds each, in turns."""
    turns, turns_of_bare = SPAWN.Pipe()
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as running:
        folder = Path(home)
        keys, file, bare_file = folder / "keys", folder / "worker.npz", folder / "bare.npz"
        server = running.enter_context(Part(run_server, {"keys_dir": keys}))
        port = server.hear()
        if case.heavy:
            trainer = running.enter_context(Part(run_trainer, case, keys, port))
            trainer.hear()
            trainer.tell("publish")
        else:
            running.enter_context(drone_trainer(folder, port))
        bare = running.enter_context(Part(run_bare, case.bare, priority, bare_file, turns_of_bare))
        worker = running.enter_context(Part(run_worker, case, keys, port, priority, file, turns))
        for part in (bare, worker):
            part.hear()
        time.sleep(max(2 * seconds, 2.5 * SLICE_S))  # a turn each, at least
        policies, _ = worker.ask("stop")
        bare.ask("stop")
        both = {"": dict(np.load(file)), "_bare": dict(np.load(bare_file))}
    leave_out = ("overrun", "late", "period") if case.name == "flat" else ()
    result: dict[str, Any] = {f"{case.name}_policies": policies}
    for who, times in both.items():
        result |= named(f"{case.name}{who}", describe(times, 1 / case.hz), leave_out)
    return result


def run_disturbed(
    case: Case, folder: Path, seconds: float, cut_s: float, stop_s: float, priority: int | None
) -> tuple[dict[str, tuple[float, float]], dict[str, Any]]:
    """One worker through all disturbances; returns which phase was when, and what was counted."""
    keys = folder / "keys"
    phases: dict[str, tuple[float, float]] = {}

    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        time.sleep(stop_s / 2)  # what was held back flows again
        phases[name] = started, time.perf_counter()

    with contextlib.ExitStack() as running:
        server = running.enter_context(Part(run_server, {"keys_dir": keys}))
        port = server.hear()
        proxy = running.enter_context(LinkProxy("127.0.0.1", port))
        trainer = running.enter_context(Part(run_trainer, case, keys, port))
        worker = running.enter_context(Part(run_worker, case, keys, proxy.port, priority, folder / "own.npz", None))
        bare = running.enter_context(Part(run_bare, case.bare, priority, folder / "bare.npz", None))
        for part in (trainer, worker, bare):
            part.hear()
        time.sleep(0.4 * stop_s)
        with phase("quiet"):
            time.sleep(seconds)
        parts = {"server": server.program, "trainer": trainer.program, "link": link_of(worker)}
        for name, process in parts.items():
            with phase(f"{name}_stopped"), stopped(process):
                time.sleep(stop_s)
        with phase("link_killed"):
            link_of(worker).kill()
            time.sleep(stop_s)
        with phase(f"network_dead_{cut_s:g}s"):
            proxy.freeze()
            time.sleep(cut_s)
            proxy.thaw()
        with phase("server_killed_and_restarted"):
            server.__exit__()
            server = running.enter_context(Part(run_server, {"keys_dir": keys, "port": port}))
            server.hear()
            time.sleep(stop_s)
        trainer.tell("publish")
        with phase("10MB_of_weights_a_second"):
            time.sleep(seconds)
        policies, steps = worker.ask("stop")
        bare.ask("stop")
        samples = trainer.ask("end")
    return phases, {"policies": policies, "env_steps": steps, "samples_at_trainer": samples}


def measure_disturbed(case: Case, seconds: float, cut_s: float, stop_s: float, priority: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        phases, counts = run_disturbed(case, folder, seconds, cut_s, stop_s, priority)
        own, bare = (dict(np.load(folder / f"{who}.npz")) for who in ("own", "bare"))
    result = named(case.name, counts)
    for phase, (start, end) in {**phases, "all": (phases["quiet"][0], float("inf"))}.items():
        for who, times, leave_out in (("", own, ("period",)), ("_bare", bare, ("period", "outside", "act"))):
            described = describe(within(times, start, end), 1 / case.hz)
            result |= named(f"{case.name}_{phase}{who}", described, leave_out)
    gaps_us = between_episodes_us(own)
    result[f"{case.name}_between_episodes_p50_us"] = float(np.median(gaps_us)) if len(gaps_us) else 0.0
    result[f"{case.name}_between_episodes_max_us"] = float(gaps_us.max(initial=0.0))
    return result


def main() -> None:
    parser = Options(__doc__, only=["images"], seconds=1.0, cut=1.0, stop=0.5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of flat, of the quiet phase, and of the weights")
    parser.add_argument("--cut", type=float, default=30.0, help="seconds for which the network is dead")
    parser.add_argument("--stop", type=float, default=5.0, help="seconds for which a process is stopped")
    parser.add_argument("--minutes", type=float, default=5.0, help="at 500 Hz, and at 1,000 Hz")
    parser.add_argument("--drone-minutes", type=float, default=1.0)
    parser.add_argument("--realtime-priority", type=int, default=None, help="of the control thread, and the bare loop")
    names = ["flat", "clocked", "weights", "images", "drone"]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    asked = parser.parse()
    in_turns = partial(measure_in_turns, priority=asked.realtime_priority)
    images = ticking("images", Kind(200.0, PICTURES))
    runs: dict[str, list[Callable[[], dict[str, Any]]]] = {
        "flat": [partial(in_turns, flat(), asked.seconds)],
        "clocked": [partial(in_turns, clocked(hz, False), 60 * asked.minutes) for hz in (500.0, 1000.0)],
        "weights": [partial(in_turns, clocked(hz, True), 60 * asked.minutes) for hz in (500.0, 1000.0)],
        "images": [partial(measure_disturbed, images, asked.seconds, asked.cut, asked.stop, asked.realtime_priority)],
        "drone": [partial(in_turns, drone(200.0), 60 * asked.drone_minutes)],
    }
    result: dict[str, Any] = {"realtime_priority": asked.realtime_priority or 0}
    for name in asked.only:
        for run in runs[name]:
            own = run()
            print(json.dumps(own), flush=True)
            result |= own
    finish(result | GOALS)


if __name__ == "__main__":
    main()
