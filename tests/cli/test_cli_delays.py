"""The actions with which `check` drives, and its report about delays and action buffers."""

from __future__ import annotations

import contextlib
from collections import deque

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from kit.interfaces import Interface
from rtgym import DEFAULT_CONFIG_DICT

from tmrl_like.base.functional import partial
from tmrl_like.cli.measured_delays import describe_response, drive_at_random, measure, random_action
from tmrl_like.envs import GenericGymEnv
from tmrl_like.envs.actions import held_actions
from tmrl_like.envs.delays import Response
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv

BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


class Cart(Interface):
    """A cart whose commands take effect after `late` further ones; 0: at once."""

    action_space = BOX

    def __init__(self, late):
        super().__init__()
        self._orders = deque([np.zeros(2)] * (late + 1), late + 1)
        self._position = np.zeros(2)
        self._noise = np.random.default_rng(0)  # chance findings are the same in each run

    def get_observation_space(self):
        return spaces.Tuple((spaces.Box(-1e3, 1e3, (2,)), spaces.Box(-1.0, 1.0, (1,))))

    def send_control(self, control):
        self._orders.append(np.asarray(control))

    def get_obs_rew_terminated_info(self):
        self._position = self._position + self._orders[0]
        return self._observation(), 0.0, False, {}

    def _observation(self):
        return [
            self._position.astype(np.float32),
            self._noise.uniform(-1.0, 1.0, 1).astype(np.float32),
        ]


def make_cart(late, act_buf_len):
    config = DEFAULT_CONFIG_DICT | {
        "interface": Cart,
        "interface_kwargs": {"late": late},
        "time_step_duration": 0.001,
        "start_obs_capture": 0.001,
        "time_step_timeout_factor": 1e6,
        "ep_max_length": 100,
        "act_buf_len": act_buf_len,
    }
    return GenericGymEnv("real-time-gym-ts-v1", {"config": config})


class Game(gymnasium.Env):
    """A game with three buttons, whose second one may stop the drive."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Discrete(3)
    stops = staticmethod(lambda: None)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.pressed = int(action)
        if action == 2:
            self.stops()
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.fixture
def supervised():
    """Return a function that makes an environment as a worker does."""
    with contextlib.ExitStack() as stack:
        yield lambda make_env: stack.enter_context(contextlib.closing(SupervisedEnv(make_env)))


def check(env, steps=300, period_s=0.05, excitation=0.3):
    drive, _ = env.run(lambda: drive_at_random(env, steps, excitation, np.random.default_rng(1)))
    held = held_actions(env.env) or 0
    return describe_response(*measure(drive, held), held, period_s)


@pytest.mark.parametrize(
    ("late", "act_buf_len", "verdict"),
    [
        (0, 4, "act_buf_len: 4 covers the delay; 1 would do, as far as was measured"),
        (3, 4, "act_buf_len: 4 covers the delay"),
        (
            3,
            2,
            "warning: the state is not Markov: actions up to 4 steps old still act, the buffer "
            "holds 2; set act_buf_len: 4",
        ),
    ],
)
def test_the_buffer_of_rtgym_is_judged_by_the_delay(supervised, late, act_buf_len, verdict):
    lines = check(supervised(partial(make_cart, late=late, act_buf_len=act_buf_len)))
    steps, ms = late + 1, (late + 1) * 50
    assert lines[0].startswith(
        f"delay: an action shows after {steps} step{'s' * (steps > 1)} ({ms} ms) (of its effect"
    )
    assert lines[1:] == [verdict]


def response(*lags, is_hidden=False):
    return Response(np.isin(np.arange(5), lags) / max(1, len(lags)), is_hidden, 100)


@pytest.mark.parametrize(
    ("found", "has_pictures", "held", "said"),
    [
        (None, False, 1, "raise --delay-steps"),
        (response(), False, 1, "no effect of the actions was seen within 4 steps"),
        (response(1, 4), False, 4, "the longest that was looked at"),
        (response(0, 2, is_hidden=True), False, 2, "such as a speed"),
        (response(0), False, 0, "act_buf_len: none is needed"),
        (response(3), True, 1, "what they show is a hint / unless the pictures show it, the state"),
    ],
)
def test_what_is_said_of_a_delay(found, has_pictures, held, said):
    assert said in " / ".join(describe_response(found, has_pictures, held, 0.1))


def test_random_actions_stay_near_the_default_one_and_in_their_space():
    random = np.random.default_rng(0)
    default = np.array([0.5, 0.0], np.float32)
    actions = [random_action(BOX, default, 0.25, random) for _ in range(500)]
    assert all(BOX.contains(action) for action in actions)
    away = np.array(actions) - default
    assert away.max(axis=0) == pytest.approx([0.5, 0.125], rel=0.02)
    assert away.min(axis=0) == pytest.approx([-0.5, 0.0], rel=0.02)
    endless = spaces.Box(-np.inf, np.inf, (3,))
    assert np.abs(random_action(endless, np.zeros(3), 0.5, random)).max() <= 0.5
    buttons = [int(random_action(spaces.Discrete(3), 1, 0.3, random)) for _ in range(1000)]
    assert np.bincount(buttons) / 1000 == pytest.approx([0.1, 0.8, 0.1], abs=0.04)


def test_the_last_order_is_the_default_action_also_of_a_drive_that_is_to_stop(supervised):
    env, random = supervised(Game), np.random.default_rng(1)
    env.run(lambda: drive_at_random(env, 50, 1.0, random))
    assert env.env.pressed == 0
    env.env.stops = env.stopping.set
    with pytest.raises(StoppedError):
        env.run(lambda: drive_at_random(env, 10**9, 0.3, random))
    assert env.env.pressed == 0
    env.stopping.clear()
