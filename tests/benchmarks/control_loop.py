"""The time that a worker adds to a control loop, and the deadlines that it misses, compared with a
bare loop.

    python tests/benchmarks/control_loop.py [--only flat clocked images] [--seconds 10]
                                            [--minutes 5] [--cut 30] [--stop 5]
                                            [--realtime-priority 10]

Server, trainer, worker and the worker's link are four processes on this machine, encrypted, and the
trainer computes all the time. The limit is the bare loop, a process with nothing else in it,
scheduled like the worker.

*flat*, *clocked*: the drone's spaces, and its actor, without torch, of which new weights come every
second. Worker and bare loop alternate every two seconds. *flat* is an environment that computes for
0.1 ms. *clocked* is our real-time environment at 500 and 1,000 Hz around an interface that takes no
time; its bare loop sleeps and spins in the same way.

*images*: an actor in torch and an environment on a clock of its own (200 Hz, pictures of 4x64x64),
while server, trainer and link are stopped or killed, while the network is dead, and while 10 MB of
weights arrive every second. Beside it, a bare loop steps the same environment.

An observation is late if it comes a fifth of a time-step or more after it was due. As in rtgym, a
step is an overrun if it takes two time-steps. *Outside* is the time of a step outside `env.step`
and `act_`: from one return of `env.step` to the next call, minus `act_`.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from _harness import SPAWN, Parts, be_quiet, benchmark, link_to, trainer_link
from _recorded import EPISODE_S, PICTURES, RECORD, Clocked, Flat, Kind, Ticking, TimedGaussian
from link_proxy import LinkProxy

LATE_SHARE = 0.2  # of a time-step
OVERRUN_SHARE = 2 * 0.99  # 1 % less, for the clock's own noise
SLICE_S = 2.0  # duration of a turn


@dataclass(frozen=True)
class Case:
    """The environments of the worker and of the bare loop."""

    name: str
    hz: float
    env: Callable
    bare: Callable


FLAT = Case("flat", 1000.0, partial(Flat, 1000.0), partial(Flat, 1000.0))
SEEN = partial(Ticking, Kind(200.0, PICTURES))
IMAGES = Case("200 Hz, pictures", 200.0, SEEN, SEEN)


def clocked(hz):
    bare = Kind(hz, episode_steps=int(EPISODE_S * hz), spins=True)
    return Case(f"{hz:,.0f} Hz", hz, partial(Clocked, hz), partial(Ticking, bare))


# -- processes -------------------------------------------------------------------------------------


def actor_of(case):
    """Return the class of the worker's actor."""
    if case.name != IMAGES.name:
        return partial(TimedGaussian, hidden_sizes=(64, 64))
    import torch
    from _heavy_actor import HeavyActor

    torch.set_num_threads(1)
    return HeavyActor


def run_trainer(case, keys, port, pipe):
    """Run a trainer that is as busy as the drone's. It takes samples as they come, and publishes
    once a second after a message over `pipe`.
    """
    import torch
    from learner import agents, batch

    from tmrl_like.wire.spaces import describe_spaces

    torch.set_num_threads(1)
    agent, trained_on = agents(64)["ships"], batch(64)
    env = case.env()
    spaces = env.observation_space, env.action_space
    actor = actor_of(case)(*spaces).in_torch()
    link = trainer_link(link_to(port, keys), describe_spaces(*spaces))
    agent.train(trained_on)  # which compiles
    pipe.send("ready")
    publishing, published_at = False, 0.0
    while True:
        publishing = publishing or pipe.poll()
        if publishing and time.monotonic() - published_at >= 1.0:
            published_at = time.monotonic()
            link.broadcast_model(actor)
        agent.train(trained_on)
        link.confirm(link.retrieve())


def run_worker(case, keys, port, priority, turns, pipe):
    """Step until a message over `pipe`, and send the times. With `turns`, a pipe to the bare loop,
    step in slices.
    """
    be_quiet()
    from tmrl_like.networking import RolloutWorker
    from tmrl_like.worker.options import WorkerOptions

    os.environ["TMRL_LIKE_HOME"] = str(keys.parent)
    options = WorkerOptions(realtime_priority=priority or None)
    where = {"server_ip": "127.0.0.1", "server_port": port, "keys_dir": keys, "model_path": None}
    with RolloutWorker(case.env, actor_of(case), **where, options=options) as worker:
        worker.wait_connected(20)
        if turns is not None:
            RECORD.on_reset = partial(_take_turns, turns, [0, time.perf_counter()])
        pipe.send("ready")
        threading.Thread(target=_stop_when_told, args=(pipe, worker.stop), daemon=True).start()
        worker.run(verbose=False)
        pipe.send(RECORD.times())


def _take_turns(bare, begun):
    """At a reset after the end of a slice, let the bare loop make as many steps."""
    row, at = begun
    if time.perf_counter() - at >= SLICE_S:
        bare.send(RECORD.rows - row)
        bare.recv()
        begun[:] = RECORD.rows, time.perf_counter()


def _stop_when_told(pipe, stop):
    with contextlib.suppress(EOFError):
        pipe.recv()
    stop()


def run_bare(make_env, priority, turns, pipe):
    """Step the environment alone, scheduled like the worker, until a message over `pipe`, and send
    the times.

    The pipe `turns` gives the number of steps to make, and gets an answer after them. Without
    `turns`, the loop never waits.
    """
    from tmrl_like.worker.realtime import real_time

    be_quiet()
    env, action = make_env(), np.zeros(2, np.float32)
    with real_time(threading.get_native_id(), priority=priority or None):
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
    pipe.send(RECORD.times())


def link_of(worker):
    """Return the process of the worker's link."""
    return next(p for p in worker.program.children() if "link_process.py" in " ".join(p.cmdline()))


# -- figures from the times ------------------------------------------------------------------------


def within(times, start, end):
    chosen = (times["returned"] >= start) & (times["returned"] < end)
    return {name: values[chosen] for name, values in times.items()}


def late_per_1000(times, time_step_s):
    """Return how many of 1,000 observations were late.

    An observation is due a time-step after the previous one was. After a reset, after an
    observation that is early, and after one that is a whole time-step late, time-steps are counted
    from the observation itself.
    """
    steps, late, due = 0, 0, 0.0
    is_first = np.isnan(times["act_s"])
    is_first[:1] = True
    for observed, first in zip(times["returned"], is_first, strict=True):
        due = observed if first else min(due + time_step_s, observed)
        if not first:
            steps += 1
            late += observed - due >= LATE_SHARE * time_step_s
            if observed - due >= time_step_s:
                due = observed
    return 1e3 * late / steps


def overruns_per_1000(times, time_step_s):
    periods_s = np.diff(times["returned"])[~np.isnan(times["act_s"])[1:]]
    return 1e3 * float(np.mean(periods_s >= OVERRUN_SHARE * time_step_s))


def outside_us(times):
    """Return each step's time outside `env.step` and `act_` in µs, without resets."""
    is_step = ~np.isnan(times["act_s"])
    outside_s = times["called"][1:] - times["returned"][:-1] - times["act_s"][1:]
    return 1e6 * outside_s[is_step[1:] & is_step[:-1]]


def costs(what, own):
    """Yield rows of the worker's own share of a step."""
    act_us = 1e6 * own["act_s"][~np.isnan(own["act_s"])]
    values = {"outside": (outside_us(own), 4.0, 100.0), "act": (act_us, 12.0, 50.0)}
    for name, (values_us, median_goal, worst_goal) in values.items():
        for q, goal in ((50, median_goal), (99.9, worst_goal)):
            yield {
                "what": f"{what}: {name}, p{q:g}, µs",
                "ours": float(np.percentile(values_us, q)),
                "goal": goal,
            }


def deadlines(what, own, bare, hz):
    """Return a row of the missed deadlines, of the worker and of the bare loop."""
    (ours, late), (limit, late_bare) = (
        (overruns_per_1000(times, 1 / hz), late_per_1000(times, 1 / hz)) for times in (own, bare)
    )
    late_of_both = f"{late:.3g} (limit {late_bare:.3g})"
    return {
        "what": f"{what}: overruns of 1,000",
        "ours": ours,
        "limit": limit,
        "late of 1,000": late_of_both,
    }


# -- runs ------------------------------------------------------------------------------------------


def in_slices(case, seconds, priority):
    """Let worker and bare loop step in turns, for `seconds` each; yield the rows."""
    turns, turns_of_bare = SPAWN.Pipe()
    with Parts() as parts:
        _, port = parts.serve()
        trainer = parts.start(run_trainer, case, parts.keys, port)
        bare = parts.start(run_bare, case.bare, priority, turns_of_bare)
        worker = parts.start(run_worker, case, parts.keys, port, priority, turns)
        for part in (trainer, bare, worker):
            part.hear()
        trainer.tell("publish")
        time.sleep(max(2 * seconds, 2.5 * SLICE_S))  # at least a turn for each
        own, alone = worker.ask("stop"), bare.ask("stop")
    yield from costs(case.name, own)
    if case is not FLAT:
        yield deadlines(case.name, own, alone, case.hz)


def disturb(seconds, cut_s, stop_s, priority):
    """Put one worker through all disturbances; return start and end of each phase, and the times
    of the worker and of the bare loop.
    """
    phases = {}

    @contextlib.contextmanager
    def phase(name):
        started = time.perf_counter()
        yield
        time.sleep(stop_s / 2)  # until delayed messages have arrived
        phases[name] = started, time.perf_counter()

    with Parts() as parts:
        server, port = parts.serve()
        proxy = parts.enter_context(LinkProxy("127.0.0.1", port))
        trainer = parts.start(run_trainer, IMAGES, parts.keys, port)
        worker = parts.start(run_worker, IMAGES, parts.keys, proxy.port, priority, None)
        bare = parts.start(run_bare, IMAGES.bare, priority, None)
        for part in (trainer, worker, bare):
            part.hear()
        time.sleep(0.4 * stop_s)
        with phase("quiet"):
            time.sleep(seconds)
        programs = {"server": server.program, "trainer": trainer.program, "link": link_of(worker)}
        for name, program in programs.items():
            with phase(f"{name} stopped"):
                program.suspend()
                time.sleep(stop_s)
                program.resume()
        with phase("link killed"):
            link_of(worker).kill()
            time.sleep(stop_s)
        with phase(f"network dead for {cut_s:g} s"):
            proxy.freeze()
            time.sleep(cut_s)
            proxy.thaw()
        with phase("server killed and started again"):
            server.__exit__()
            parts.serve(port=port)
            time.sleep(stop_s)
        trainer.tell("publish")
        with phase("10 MB of weights a second"):
            time.sleep(seconds)
        return phases, worker.ask("stop"), bare.ask("stop")


def disturbed(seconds, cut_s, stop_s, priority):
    case = IMAGES
    phases, own, bare = disturb(seconds, cut_s, stop_s, priority)
    for phase, (start, end) in phases.items():
        yield deadlines(
            f"{case.name}, {phase}", within(own, start, end), within(bare, start, end), case.hz
        )
    since, until = phases["quiet"][0], float("inf")
    yield from costs(f"{case.name}, all phases", within(own, since, until))
    resets = np.flatnonzero(np.isnan(own["act_s"]))[1:]
    between_ms = 1e3 * (own["called"][resets] - own["returned"][resets - 1])
    yield {
        "what": f"{case.name}: longest between two episodes, ms",
        "ours": float(between_ms.max(initial=0)),
        "goal": 1,
    }


def measure(options):
    priority = options.realtime_priority
    if "flat" in options.only:
        yield from in_slices(FLAT, options.seconds, priority)
    for hz in (500.0, 1000.0) if "clocked" in options.only else ():
        yield from in_slices(clocked(hz), 60 * options.minutes, priority)
    if "images" in options.only:
        yield from disturbed(options.seconds, options.cut, options.stop, priority)


if __name__ == "__main__":
    benchmark(
        __doc__,
        measure,
        only=["flat", "clocked", "images"],
        seconds=10.0,
        minutes=5.0,
        cut=30.0,
        stop=5.0,
        realtime_priority=0,
        quick={"only": ["flat", "images"], "seconds": 1.0, "cut": 1.0, "stop": 0.5},
    )
