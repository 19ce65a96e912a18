"""The actions with which `check` drives, and its report about delays and action buffers."""

from contextlib import closing

import numpy as np
import pytest
from gymnasium import spaces
from kit.boxes import box
from kit.environments import Recording, calling

from tmrl_like.cli.measured_delays import describe_response, drive_at_random, measure, random_action
from tmrl_like.envs.delays import Response
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv

BOX = spaces.Box(np.float32([-2.0, 0.0]), np.float32([2.0, 1.0]))


def test_past_actions_that_an_observation_holds_are_no_effect_of_an_action():
    random = np.random.default_rng(0)  # chance findings are the same in each run
    actions = random.uniform(-1.0, 1.0, (301, 1))
    drive = [([*actions[1:]], [*zip(random.uniform(-1.0, 1.0, (301, 1)), actions, strict=True)])]
    assert measure(drive, 0)[0].lags == (0,)
    assert measure(drive, 1)[0].lags == ()


def response(*lags, is_hidden=False):
    return Response(np.isin(np.arange(5), lags) / max(1, len(lags)), is_hidden, 100)


@pytest.mark.parametrize(
    ("found", "has_pictures", "held", "said"),
    [
        (None, False, 1, "raise --delay-steps"),
        (response(), False, 1, "no effect of the actions was seen within 4 steps"),
        (response(1, 4), False, 4, "the longest that was looked at"),
        (response(0, 2, is_hidden=True), False, 2, "such as a speed"),
        (response(0), False, 0, "in the step itself; measured over 100 steps / act_buf_len: none"),
        (
            response(3),
            False,
            4,
            "act_buf_len: 4 covers the delay; 3 would do, as far as was measured",
        ),
        (
            response(3),
            False,
            3,
            "100% after 3 steps (300 ms); measured over 100 steps / act_buf_len: 3 covers",
        ),
        (
            response(3),
            False,
            2,
            "warning: the state is not Markov: actions up to 3 steps old still act, the buffer "
            "holds 2; set act_buf_len: 3",
        ),
        (response(3), True, 1, "what they show is a hint / unless the pictures show it, the state"),
    ],
)
def test_what_is_said_of_a_delay(found, has_pictures, held, said):
    assert said in " / ".join(describe_response(found, has_pictures, held, 0.1))


def test_random_actions_stay_near_the_default_one_and_in_their_space():
    random = np.random.default_rng(0)
    default = np.float32([0.5, 0.0])
    actions = [random_action(BOX, default, 0.25, random) for _ in range(500)]
    assert all(BOX.contains(action) for action in actions)
    away = np.array(actions) - default
    assert away.max(axis=0) == pytest.approx([0.5, 0.125], rel=0.02)
    assert away.min(axis=0) == pytest.approx([-0.5, 0.0], rel=0.02)
    endless = box(np.inf, 3)
    assert np.abs(random_action(endless, np.zeros(3), 0.5, random)).max() <= 0.5
    buttons = [int(random_action(spaces.Discrete(3), 1, 0.3, random)) for _ in range(1000)]
    assert np.bincount(buttons) / 1000 == pytest.approx([0.1, 0.8, 0.1], abs=0.04)


def test_the_last_order_is_the_default_action_also_of_a_drive_that_is_to_stop():
    def drive(steps):
        supervised.run(lambda: drive_at_random(supervised, steps, 1.0, np.random.default_rng(1)))

    def stop(env):
        if env.total_steps == 60:
            supervised.stopping.set()

    with closing(SupervisedEnv(calling(stop, Recording))) as supervised:
        drive(45)
        assert supervised.env.sent[-2] != supervised.env.sent[-1] == 0.0
        with pytest.raises(StoppedError):
            drive(10**9)
        assert supervised.env.sent[-2] != supervised.env.sent[-1] == 0.0
