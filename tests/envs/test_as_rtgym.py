"""`ClockedGym` treats an interface as rtgym's environments do, call by call and to the
microsecond.
"""

import sys
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces
from kit.boxes import box
from kit.interfaces import Interface
from rtgym import DEFAULT_CONFIG_DICT
from rtgym.envs import real_time_env

from tmrl_like.envs.clock import Clock
from tmrl_like.envs.real_time import ClockedGym

MS = 1 / 1024  # near enough, and sums of it are exact
STEP = 16 * MS


class Timeline:
    """A simulated time for each thread, which advances when that thread sleeps. Waiting for another
    thread advances it to that thread's time.
    """

    def __init__(self):
        self._local = threading.local()

    def now(self):
        return getattr(self._local, "now", 1024.0)

    def sleep(self, duration):
        assert duration >= 0
        self._local.now = self.now() + duration

    def not_before(self, time):
        self._local.now = max(self.now(), time)

    def event(self):
        timeline = self

        class Event(threading.Event):
            set_at = 0.0

            def set(self):
                self.set_at = timeline.now()
                super().set()

            def wait(self, timeout=None):
                super().wait(timeout)
                timeline.not_before(self.set_at)
                return True

        return Event()


class Recorder(Interface):
    """An interface that records its calls and their times. Each call takes its given time in ms;
    every fifth observation ends the episode.

    Without `with_time`, it does not return the time at which an observation was taken.
    """

    action_space = box(1.0, 2)

    def __init__(self, timeline, calls, with_time, **takes_ms):
        self._timeline, self._with_time, self._takes_ms = timeline, with_time, takes_ms
        super().__init__()
        self.calls = calls

    def _note(self, name, *args):
        # that of "get_obs" is in the observation
        now = self._timeline.now() if name != "get_obs" else None
        self.calls.append((name, now, *args))
        self._timeline.sleep(MS * self._takes_ms.get(name, 0))

    def _observe(self):
        self.steps += 1
        now = self._timeline.now() if self._with_time else 0.0
        obs = [np.array([self.steps, 0.5], np.float64), np.uint8(self.steps), now]
        return obs, {"count": self.steps}

    def send_control(self, control):
        self._note("send_control", control)

    def reset(self, seed=None, options=None):
        self._note("reset", seed, options)
        return self._observe()

    def get_obs_rew_terminated_info(self):
        self._note("get_obs")
        obs, info = self._observe()
        return obs, np.float32(self.steps), self.steps % 5 == 4, info

    def render(self):
        return self.steps

    def get_observation_space(self):
        return spaces.Tuple(
            (spaces.Box(0, 99, (2,), np.float64), spaces.Discrete(99), spaces.Box(0, 1e9, ()))
        )

    def get_default_action(self):
        return np.full(2, 0.5, np.float32)


def play(make, timeline, config, pauses_ms, **interface_kwargs):
    """Run a script of all possible calls; return what it saw: results, errors, warnings, times, and
    the interface's calls.
    """
    calls, seen = [], []
    config = DEFAULT_CONFIG_DICT | {
        "interface": Recorder,
        "interface_args": (timeline, calls),
        "interface_kwargs": interface_kwargs,
        "time_step_duration": STEP,
        "start_obs_capture": STEP,
        **config,
    }
    actions, waits = np.random.default_rng(0), np.random.default_rng(1)

    def note(call, *args, **kwargs):
        try:
            result = call(*args, **kwargs)
        except RuntimeError as error:
            result = str(error)
        seen.append((timeline.now(), result))
        return result

    def episode(seed):
        note(env.reset, seed=seed, options={"seed": seed})
        result = None
        while not isinstance(result, str):
            timeline.sleep(MS * float(waits.choice(pauses_ms)))
            result = note(env.step, actions.uniform(-1, 1, 2).astype(np.float32))

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        env = make(config, timeline)
        seen += [env.observation_space, env.action_space, env.default_action]
        seen += [env.act_buf_len, env.act_in_obs]
        for seed in range(4):
            episode(seed)
        note(env.wait)
        timeline.sleep(9 * STEP)
        episode(4)
        for call in (env.reset, env.wait):
            note(call)
            note(env.step, np.zeros(2, np.float32))
        note(env.reset)
        note(env.wait)
        seen += [env.render(), env.benchmark and env.benchmarks()]
        getattr(env, "__del__", env.close)()  # rtgym's thread ends
    seen.append([str(warning.message) for warning in warned])
    return [*seen, calls]


def assert_same(ours, theirs):
    """Compare values, types and dtypes, to the last bit of each number."""
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
        assert repr(ours) == repr(theirs)


def ours(config, timeline):
    return ClockedGym(config, Clock(0.0, timeline.now, timeline.sleep))


def theirs(config, timeline):
    return real_time_env.RealTimeEnvTS(config)


@pytest.fixture
def play_both(monkeypatch):
    """Return a function that plays the script with our environment and with rtgym's."""

    def play_with(make, *script, **takes):
        timeline = Timeline()
        time = SimpleNamespace(perf_counter=timeline.now, sleep=timeline.sleep)
        monkeypatch.setattr(real_time_env, "time", time)
        monkeypatch.setattr(real_time_env, "Event", timeline.event)
        monkeypatch.setattr("rtgym.envs.utils.benchmark.time", time)
        return play(make, timeline, *script, **takes)

    return lambda *script, **takes: [play_with(make, *script, **takes) for make in (ours, theirs)]


IN_TIME = [0, 4, 15]  # ms that the policy takes
LATE = [*IN_TIME, 20, 40, 90]


@pytest.mark.parametrize(
    ("config", "pauses_ms", "takes_ms"),
    [
        ({}, [2], {"get_obs": 3, "reset": 5, "wait": 7}),
        ({}, [2], {"get_obs": 18, "reset": 99}),
        ({"ep_max_length": 3, "wait_on_done": True}, IN_TIME, {"wait": 50}),
        (
            {"act_prepro_func": lambda act: -act, "obs_prepro_func": lambda obs: [7, *obs]},
            IN_TIME,
            {},
        ),
        ({"benchmark": True}, IN_TIME, {"reset": 5}),
        ({"benchmark": True, "benchmark_type": "trace"}, IN_TIME, {}),
        ({"start_obs_capture": 9 * MS}, [0, 4, 8], {"get_obs": 2}),
        ({"time_step_duration": 0.0, "start_obs_capture": 0.0}, [0, 1], {}),
    ],
)
def test_calls_times_observations_flags_and_warnings_are_rtgyms(
    play_both, config, pauses_ms, takes_ms
):
    assert_same(*play_both(config, pauses_ms, with_time=True, **takes_ms))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"time_step_timeout_factor": 5.0},
        {"ep_max_length": 3, "act_buf_len": 3, "reset_act_buf": False},
        {"act_buf_len": 4, "reset_act_buf": False, "last_act_on_reset": True},
        {"act_buf_len": 2, "act_in_obs": False},
        {"start_obs_capture": 9 * MS, "wait_on_done": True},
    ],
)
def test_so_they_are_with_a_policy_that_is_late_but_for_when_observations_are_taken(
    play_both, config
):
    ours, theirs = play_both(config, LATE, with_time=False)
    assert_same(ours, theirs)
    assert any("Time-step timed out" in warning for warning in ours[-2])
