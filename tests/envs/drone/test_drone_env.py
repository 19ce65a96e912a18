"""The drone of the tutorial."""

import threading

from kit.pythons import python

from tmrl_like.envs.drone import DroneEnv

FLIGHT = """
import time
import numpy as np
from tmrl_like.envs.drone import DroneEnv
env = DroneEnv(ep_max_length=8)
truncated = False
while not truncated:  # a target that lies in its way ends a flight early
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)
    started, steps, terminated = time.perf_counter(), 0, False
    while not (terminated or truncated):
        obs, rew, terminated, truncated, _ = env.step(np.float32([1.0, 0.0]))
        steps += 1
    assert time.perf_counter() - started > (steps - 1) * 0.05
assert steps == 8
assert rew < 0
assert obs[0][0] > 0.05
picture = env.render()
assert (picture.dtype, picture.shape) == (np.uint8, (400, 400, 3))
rows, columns = np.nonzero((picture == (255, 0, 0)).all(-1))  # the target
assert abs(columns.mean() - (200 + 200 * obs[2][0])) < 2
assert abs(rows.mean() - (200 + 200 * obs[3][0])) < 2
rows, columns = np.nonzero((picture == (0, 0, 255)).all(-1))
assert abs(columns.mean() - (200 + 200 * obs[0][0])) < 30, "the drone, a little later"
"""


def test_the_drone_flies_in_real_time_and_headless(monkeypatch):
    """It flies in a separate process, because rtgym's drone starts threads that never end and that
    draw from the global `random`.
    """
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    python("-c", FLIGHT)


def test_a_drone_that_is_closed_stands_still(until):
    def started():
        return any("__send_obs" in thread.name for thread in threading.enumerate())

    env = DroneEnv(time_step_duration=0.005)
    env.reset()
    until(started)
    env.close()
    until(lambda: not started())
