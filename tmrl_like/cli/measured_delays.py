"""Delays in `tmrl-like check`: sends random actions, and measures when they show in
observations.
"""

from __future__ import annotations

import copy
import time
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.base.text import counted
from tmrl_like.cli.arguments import Arguments
from tmrl_like.envs.actions import held_actions
from tmrl_like.envs.delays import Response, Trace, measure_response, to_features
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv
from tmrl_like.worker.worker import RolloutWorker

Drive: TypeAlias = list[tuple[list[Any], list[Any]]]
"""For each episode its actions as vectors, and its observations, which are one more."""


def report_delays(worker: RolloutWorker, arguments: Arguments, seed: int) -> None:
    """Announce the drive, drive, and print the delays that were found."""
    env, steps, excitation = worker.env, arguments.delay_steps, arguments.excitation
    takes = (
        f", about {steps * worker.loop.env.time_step_s:.0f} s"
        if worker.loop.env.time_step_s
        else ""
    )
    if isinstance(env.action_space, spaces.Box):
        how = f"up to {excitation:.0%} of half their range away from the default action"
    else:
        how = f"another one than the default action in {excitation:.0%} of the steps"
    print(
        f"delays: driving {steps} steps{takes} with random actions, {how} "
        "(--excitation; --delay-steps 0 leaves this out)",
    )
    drive, periods_s = worker.run_in_control_thread(
        lambda: drive_at_random(worker.loop.env, steps, excitation, np.random.default_rng(seed))
    )
    held = held_actions(env) or 0
    period_s = float(np.median(periods_s)) if worker.loop.env.time_step_s else None
    for line in describe_response(*measure(drive, held, seed), held, period_s):
        print(line)


def random_action(
    space: gymnasium.Space[Any], default: Any, excitation: float, random: np.random.Generator
) -> Any:
    """Return an action near the default one, independent of all others.

    `excitation` is 0 to 1. In a Box, each number differs from the default's by at most this share
    of half its range (of 1, if the range is infinite). In other spaces, it is the probability of a
    draw from the space.
    """
    if isinstance(space, spaces.Box):
        with np.errstate(over="ignore"):
            half = (space.high.astype(np.float64) - space.low.astype(np.float64)) / 2
        half = np.where(np.isfinite(half), half, 1.0)
        action = np.asarray(default, np.float64) + excitation * half * random.uniform(
            -1.0, 1.0, space.shape
        )
        if space.dtype is not None and np.issubdtype(space.dtype, np.integer):
            action = np.round(action)
        return np.asarray(np.clip(action, space.low, space.high), space.dtype)
    if random.random() >= excitation:
        return default
    space.seed(int(random.integers(2**31)))
    return space.sample()


def drive_at_random(
    env: SupervisedEnv, steps: int, excitation: float, random: np.random.Generator
) -> tuple[Drive, list[float]]:
    """Take `steps` steps with random actions, then one with the default action; in the control
    thread. Also returns the times from observation to observation.
    """
    drive, periods_s = Drive(), list[float]()
    space, default = env.env.action_space, env.default_action
    ended = True
    for _ in range(steps):
        if ended:
            actions: list[Any] = []
            observations = [copy.deepcopy(env.reset()[0])]
            drive.append((actions, observations))
            observed_at = time.perf_counter()
        if env.stopping.is_set():
            break
        action = random_action(space, default, excitation, random)
        obs, _, terminated, truncated, _ = env.step(action)
        before, observed_at = observed_at, time.perf_counter()
        periods_s.append(observed_at - before)
        actions.append(spaces.flatten(space, action))
        observations.append(copy.deepcopy(obs))
        ended = bool(terminated or truncated)
    if not ended:
        env.step(default)
    if env.stopping.is_set():
        raise StoppedError
    return drive, periods_s


def measure(drive: Drive, held: int, seed: int = 0) -> tuple[Response | None, bool]:
    """Measure when actions show; the `held` past actions at the end of each observation are left
    out.

    Returns:
        The response in numbers or, if they show no effect, in pictures and long arrays, which are
        reduced first; None if there are too few steps to measure it.
        Whether there are pictures or long arrays.
    """
    seen = [
        obs[: len(obs) - held] if held else obs for _, observations in drive for obs in observations
    ]
    features, whole = to_features(seen)
    traces, start = [], 0
    for actions, observations in drive:
        end = start + len(observations)
        traces.append(Trace(np.array(actions, np.float64), features[start:end]))
        start = end
    has_pictures = whole < features.shape[1]
    response = measure_response(traces, slice(0, whole), seed)
    if has_pictures and response is not None and not response.lags:
        response = measure_response(traces, slice(whole, None), seed)
    return response, has_pictures


def describe_response(
    response: Response | None, has_pictures: bool, held: int, period_s: float | None
) -> list[str]:
    """Return lines about what `measure` found, and the action buffer that it requires.

    `held` past actions are in each observation. `period_s` is the measured time-step; None if the
    environment is not in real time.
    """
    if response is None:
        return [
            "delay: not measured: too few steps for so many actions, or episodes too short; raise "
            "--delay-steps"
        ]
    if not response.lags:
        return [
            f"delay: no effect of the actions was seen within {response.max_lag} steps: raise "
            "--excitation, or --delay-steps; if there should be one, check whether actions arrive"
        ]
    parts = (f"{response.shares[lag]:.0%} {_after(lag, period_s)}" for lag in response.lags)
    effect = ", ".join(parts)
    lines = [f"delay: shares of an action's effect: {effect}; measured over {response.rows} steps"]
    if has_pictures:
        lines.append(
            "note: pictures and long arrays were reduced to a few numbers; what they show is a hint"
        )
    elif response.hidden_state:
        lines.append(
            "note: older actions predict what comes next better than the observation does: it "
            "seems to lack something that moves, such as a speed; add it, or the last observations"
        )
    return [*lines, _describe_buffer(response, held, is_sure=not has_pictures)]


def _after(lag: int, period_s: float | None) -> str:
    if not lag:
        return "in the step itself"
    age = counted(lag, "step")
    return f"after {age}" if period_s is None else f"after {age} ({lag * period_s * 1e3:.0f} ms)"


def _describe_buffer(response: Response, held: int, is_sure: bool) -> str:
    needed = response.act_buf_len
    age = counted(needed, "step")
    not_markov = (
        "warning: the state is not Markov"
        if is_sure
        else "unless the pictures show it, the state is not Markov"
    )
    if response.never_ends:
        return (
            f"{not_markov}: actions still act after {age}, the longest that was looked at; the "
            "observation does not show what they do"
        )
    if held < needed:
        return (
            f"{not_markov}: actions up to {age} old still act, the buffer holds {held}; set "
            f"act_buf_len: {needed}"
        )
    if held > needed:
        return f"act_buf_len: {held} covers the delay; {needed} would do, as far as was measured"
    return f"act_buf_len: {held} covers the delay" if held else "act_buf_len: none is needed"
