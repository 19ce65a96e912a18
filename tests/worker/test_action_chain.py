"""Filters and limits between the policy or driver and the environment: what each does, and who
records the result.
"""

import math
import re

import numpy as np
import pytest
from gymnasium import spaces
from house import alone
from hypothesis import given
from hypothesis import strategies as st
from kit.boxes import box
from kit.environments import Recording, acting
from kit.episodes import episode
from kit.refusals import one_line
from kit.samples import appended_by

from tmrl_like import load_experiment
from tmrl_like.base.functional import partial
from tmrl_like.config.document import find_experiment
from tmrl_like.worker.action_chain import (
    AccelerationLimit,
    ActionChain,
    ActionPart,
    DeadZone,
    GrowingRange,
    OneEuroFilter,
    RateLimit,
)

STEP_S = 0.05
BOX = box(1.0, 2)
REST = np.array([0.0, -0.5], np.float32)


def chain_of(*parts, space=BOX, rest=REST):
    chain = ActionChain(parts)
    chain.connect(space, rest, STEP_S)
    return chain


def answers(part, actions, rest=0.0):
    """Return a part's outputs for a sequence of one-dimensional actions, starting at rest."""
    chain = chain_of(part, space=spaces.Box(-1.0, 1.0, (1,), np.float64), rest=np.array([rest]))
    return np.array([chain([action]).item() for action in actions])


# -- each part -------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.4])
def test_the_one_euro_filter_is_that_of_its_authors(beta):
    """Algorithm 1 of the paper, with its exponential smoothing alpha = 1 / (1 + tau / Te); at rest
    before.
    """
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, 20)

    def alpha(cutoff_hz):
        return 1.0 / (1.0 + 1.0 / (2.0 * math.pi * cutoff_hz * STEP_S))

    expected, before, smooth, speed = [], 0.0, 0.0, 0.0
    for action in actions:
        rate = (action - before) / STEP_S
        speed += alpha(1.5) * (rate - speed)
        smooth += alpha(0.7 + beta * abs(speed)) * (action - smooth)
        expected.append(smooth)
        before = action
    found = answers(OneEuroFilter(0.7, beta, speed_cutoff_hz=1.5), actions)
    assert found == pytest.approx(np.array(expected))


ACTIONS = st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=40)


@given(ACTIONS, st.floats(0.1, 100.0))
def test_no_number_changes_faster_than_its_rate_limit(actions, per_s):
    found = answers(RateLimit(per_s), actions)
    changes = np.diff(found, prepend=0.0)
    assert np.all(np.abs(changes) <= per_s * STEP_S + 1e-9)
    wanted = np.array(actions) - np.concatenate(([0.0], found[:-1]))
    is_free = np.abs(wanted) <= per_s * STEP_S
    assert found[is_free] == pytest.approx(np.array(actions)[is_free])


@given(ACTIONS, st.floats(0.1, 1000.0))
def test_the_speed_of_no_number_changes_faster_than_its_acceleration_limit(actions, per_s2):
    found = answers(AccelerationLimit(per_s2), actions)
    speeds = np.diff(found, prepend=0.0) / STEP_S
    assert np.all(np.abs(np.diff(speeds, prepend=0.0)) <= per_s2 * STEP_S * (1 + 1e-6) + 1e-6)


@given(st.floats(-1.0, 1.0), st.floats(0.5, 1000.0))
def test_an_accelerated_number_arrives_and_never_goes_beyond(goal, per_s2):
    found = answers(AccelerationLimit(per_s2), np.full(200, goal)) * math.copysign(1.0, goal)
    assert np.all(found <= abs(goal) + 1e-9)
    assert np.all(np.diff(found, prepend=0.0) >= -1e-9)
    assert found[-1] == pytest.approx(abs(goal), abs=1e-6)


def test_a_number_whose_acceleration_has_no_limit_passes_unchanged():
    chain = chain_of(AccelerationLimit([math.inf, 20.0]))
    assert chain([-1.0, 0.5]).tolist() == pytest.approx([-1.0, -0.45])


def test_what_is_within_the_dead_zone_of_the_default_action_becomes_it():
    chain = chain_of(DeadZone([0.1, 0.2]))
    assert chain([0.05, -0.4]).tolist() == REST.tolist()
    assert chain([0.2, -0.29]).tolist() == pytest.approx([0.2, -0.29])


def test_a_range_grows_with_steps_from_the_default_action_to_the_bounds_over_the_episodes():
    chain = chain_of(GrowingRange(0.2, steps=4))
    for share in (0.2, 0.4, 0.6, 0.8, 1.0, 1.0):
        chain.begin()
        assert chain([1.0, -1.0]).tolist() == pytest.approx([share, -0.5 - 0.5 * share])


def test_a_range_grows_with_episodes_that_went_well():
    """An episode of four steps returns 1 + 2 + 3 + 4 = 10; one that a fault ended never counts."""
    part = GrowingRange(0.5, episodes=2, min_return=10.0)
    with alone(Held, Full, action_chain=partial(ActionChain, [part])) as worker:
        for max_samples in (4, 3):
            worker.run_episode(max_samples)
        worker.loop.chain.end(episode(return_=10.0, fault="the cable is out"))
        for _ in range(2):
            worker.run_episode()
        got = worker.env.sent
    assert got == pytest.approx([0.5] * 4 + [0.75] * 3 + [0.75] * 4 + [1.0] * 4)


# -- the chain -------------------------------------------------------------------------------------


class Twice(ActionPart):
    def __call__(self, action):
        action[:] = [2.0 * x for x in action]


def test_parts_follow_each_other_and_what_comes_out_fits_bounds_and_dtype_of_the_space():
    assert chain_of(Twice(), RateLimit(4.0))([0.9, 0.0]).tolist() == pytest.approx([0.2, -0.3])
    assert chain_of(RateLimit(4.0), Twice())([0.9, 0.0]).tolist() == pytest.approx([0.4, -0.6])
    beyond = chain_of(Twice())([0.9, -0.9])
    assert (beyond.tolist(), beyond.dtype) == ([1.0, -1.0], np.float32)


def test_an_action_beyond_the_bounds_acts_as_one_at_the_bound():
    goals = np.repeat([1.0, -1.0, 1.0], 20)
    part = OneEuroFilter(1.0, 0.5)
    assert answers(part, 5.0 * goals) == pytest.approx(answers(part, goals))


class Undefined(ActionPart):
    def __call__(self, action):
        action[1] = math.nan


def test_what_is_not_finite_never_gets_to_the_environment():
    with one_line(r"an action of Undefined is not finite: \[0\.0, nan\]"):
        chain_of(Undefined())([0.0, 0.0])


class AsAFunction(ActionPart):
    def __call__(self, action):
        return [2.0 * x for x in action]


def test_each_episode_begins_at_rest():
    chain = chain_of(OneEuroFilter(1.0, 0.5), RateLimit(3.0), AccelerationLimit(50.0))
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (20, 2))
    episodes = []
    for _ in range(2):
        chain.begin()
        episodes.append([chain(action).tolist() for action in actions])
    assert episodes[0] == episodes[1]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: chain_of(space=spaces.Discrete(3), rest=0),
            "expected for an action_chain a Box of floats",
        ),
        (
            lambda: chain_of(space=box(np.inf, 2)),
            "expected for an action_chain a Box of floats",
        ),
        (
            lambda: alone(action_chain=partial(ActionChain, [OneEuroFilter()])),
            "give its action_chain a time_step_s",
        ),
        (
            lambda: alone(action_chain=partial(OneEuroFilter, 1.0)),
            "what action_chain makes is 'OneEuroFilter'; expected an ActionChain, with",
        ),
        (
            lambda: chain_of(RateLimit([1.0, 2.0, 3.0])),
            "per_s is [1.0, 2.0, 3.0]; expected one number, or 2",
        ),
        (
            lambda: chain_of(AsAFunction())(REST),
            "AsAFunction returns an action; expected a part that changes, in place",
        ),
        (lambda: chain_of(RateLimit([[1.0], 2.0])), "per_s is [[1.0], 2.0]; expected one"),
        (lambda: chain_of(DeadZone(None)), "width is None; expected one number, or 2"),
        (lambda: chain_of(AccelerationLimit(0.0)), "per_s2 is 0.0; expected more than 0"),
        (lambda: chain_of(DeadZone([0.1, -0.1])), "width is [0.1, -0.1]; expected 0 or more"),
        (lambda: OneEuroFilter(beta=math.inf), "beta is inf; expected 0 to 1000000.0"),
        (lambda: GrowingRange(0.0, steps=1), "first is 0.0"),
        (lambda: GrowingRange(0.5), "expected one of them at least"),
    ],
)
def test_what_cannot_be_is_one_line(make, said):
    with one_line(re.escape(said)):
        make()


# -- in a worker -----------------------------------------------------------------------------------


class InRealTime(Recording):
    time_step_s = STEP_S


Held = partial(InRealTime, episode_steps=4)
Full = acting(lambda obs: np.ones(1, np.float32))
MadAtLast = acting(lambda obs: np.array([1.0 if obs[0, 0] == 1.0 else np.nan], np.float32))
one_chain = partial(ActionChain, [RateLimit(4.0)])


def test_environment_and_samples_hold_what_came_out_also_of_the_safe_action():
    """Each episode begins at rest."""
    with alone(Held, MadAtLast, action_chain=one_chain, safe_action=[1.0]) as worker:
        appended = appended_by(worker)
        worker.run(nb_episodes=2, verbose=False)
        got = worker.env.sent
    assert got == pytest.approx([0.2, 0.4, 0.6, 0.8] * 2)
    sampled = np.concatenate([act for (act, *_), *_ in appended])
    assert np.array_equal(sampled[sampled > 0.0], got)  # a reset's action is 0


def test_environments_of_one_worker_have_a_chain_each():
    with alone(Held, Full, action_chain=one_chain, envs=2) as worker:
        chains = [lane.loop.chain for lane in worker.lanes]
        found = [chain(np.ones(1, np.float32)).item() for chain in chains * 2]
    assert found == pytest.approx([0.2, 0.2, 0.4, 0.4])


CHAIN = f"{ActionChain.__module__}."
IN_YAML = f"""
action_chain:
  class_path: {CHAIN}ActionChain
  init_args:
    parts:
    - class_path: {CHAIN}RateLimit
      init_args: {{per_s: 4}}
    - {{class_path: {CHAIN}DeadZone, init_args: {{width: [0.5, 0.0]}}}}
"""


def test_an_experiment_names_its_parts(tmp_path):
    drone = find_experiment("drone").read_text()
    (tmp_path / "drone.yaml").write_text(drone + IN_YAML)
    with load_experiment(tmp_path / "drone.yaml").make_standalone() as worker:
        for expected in ([0.0, 0.2], [0.0, 0.4], [0.6, 0.6]):
            assert worker.loop.chain([1.0, 1.0]).tolist() == pytest.approx(expected)
