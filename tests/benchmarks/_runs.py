"""Learning runs on what others leave of the machine, kept as lines of JSON: those that are whole are not made again."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from _common import SPAWN

from tmrl_like.agents.process import tune_process
from tmrl_like.envs.actions import default_action
from tmrl_like.replay import ReplayMemory
from tmrl_like.types import Buffer, Info

Point = tuple[int, float, float]  # environment steps, seconds of CPU time, what the test gave
Curve = list[Point]


def practise(
    env: Any,
    memory: ReplayMemory,
    choose: Callable[[int, Any], Any],
    train: Callable[[int], None],
    steps: int,
    every: int,
    test: Callable[[], float],
    *,
    seed: int | None = None,
    compress: Callable[..., Any] = lambda *sample: sample,
    tests_in_env: bool = False,
) -> Iterator[Point]:
    """Act and train in a plain loop, and test every so many steps; the seconds are those of the loop, not of the tests.

    Args:
        env: where it acts.
        memory: gets all samples.
        choose: gives the action, for the number of the step and an observation.
        train: called after each step, with its number.
        steps: how many.
        every: steps between two tests.
        test: makes one.
        seed: of the first reset; None: none.
        compress: what becomes of a sample.
        tests_in_env: the tests use `env`: another episode begins after each.
    """
    spent_s, over = 0.0, True
    resets: dict[str, Any] = {} if seed is None else {"seed": seed}
    for step in range(1, steps + 1):
        began_s = time.process_time()
        if over:
            obs, info = env.reset(**resets)
            resets = {}
            reset = default_action(env), obs, 0.0, False, False, Info(info, is_reset=True)
            memory.append(Buffer([compress(*reset)], "worker"))
        action = choose(step, obs)
        obs, rew, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        memory.append(Buffer([compress(action, obs, rew, terminated, truncated, Info(info))], "worker"))
        train(step)
        spent_s += time.process_time() - began_s
        if step % every == 0:
            yield step, spent_s, test()
            over |= tests_in_env


def keep(file: Path, keys: Sequence[str], run: Sequence[Any], points: Iterable[Point], digits: int = 1) -> str:
    """Append a line for each point of a run, and return the last; `keys` name what names the run, then a point."""
    line = ""
    for step, spent_s, value in points:
        line = json.dumps(dict(zip(keys, (*run, step, round(spent_s, 1), round(value, digits)), strict=True)))
        with file.open("a") as lines:
            lines.write(line + "\n")
    return line


def read(file: Path, keys: Sequence[str]) -> dict[tuple[Any, ...], Curve]:
    """What names a run -> its points; of two runs of the same, the later."""
    curves: dict[tuple[Any, ...], Curve] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        *run, step, spent_s, value = (json.loads(line)[key] for key in keys)
        known = curves.setdefault(tuple(run), [])
        known[:] = [*(point for point in known if point[0] < step), (step, spent_s, value)]
    return curves


def make(run: Callable[..., str], jobs: int, arguments: Iterable[tuple[Any, ...]]) -> None:
    """Make so many runs at a time, each in a process of its own, and print what each returns."""
    with ProcessPoolExecutor(jobs, SPAWN, max_tasks_per_child=1) as pool:
        for finished in as_completed([pool.submit(run, *of_one) for of_one in arguments]):
            print(finished.result(), flush=True)


def give_way(autogroup: int) -> None:
    """Leave the cores to everybody else, use one of them, and end with the process that started this one.

    Linux shares cores between sessions first (autogroups): the nice value of a process counts only inside its own.
    """
    os.nice(19)
    with suppress(OSError):  # elsewhere there are none
        os.setsid()
        Path("/proc/self/autogroup").write_text(str(autogroup))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tune_process(threads=1)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
