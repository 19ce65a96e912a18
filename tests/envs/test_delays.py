"""Delays are found in simulations with known delays, and not found where there are none."""

import numpy as np
import pytest
from gymnasium import spaces
from kit.boxes import picture

from tmrl_like.envs.delays import MAX_LAG, Trace, measure_response, to_features

# Dynamics: from state and acting action to next state and observation.


def first_order(state, acting):
    new = 0.8 * state[:2] + acting
    return new, new


def coupled(state, acting):
    """Step two speeds and two positions."""
    speed = 0.9 * state[:2] + acting
    new = np.concatenate([speed, state[2:] + speed])
    return new, new


def speed_is_hidden(state, acting):
    new, _ = coupled(state, acting)
    return new, new[2:]


def nothing(state, acting):
    return state, state


def simulate(dynamics, delays, noise=0.0, seed=0, episodes=4, steps=100, walk=0.0):
    """Drive with random actions [T, 2] of unit deviation. Each takes effect after a delay drawn
    from `delays`; the newest that has arrived acts.
    """
    random = np.random.default_rng(seed)
    traces = []
    for _ in range(episodes):
        actions = random.uniform(-(3**0.5), 3**0.5, (steps, 2))
        arrival = np.arange(steps) + random.choice(delays, steps)
        state, acting = 5 * random.normal(size=4), np.zeros(2)
        observations = [dynamics(state, acting)[1]]
        for t in range(steps):
            arrived = np.flatnonzero(arrival <= t)
            acting = actions[arrived[-1]] if len(arrived) else acting
            state, seen = dynamics(state, acting)
            state = state + walk * random.normal(size=np.shape(state))
            observations.append(seen + noise * random.normal(size=len(seen)))
        traces.append(Trace(actions, np.array(observations)))
    return traces


def measured(*arguments, **options):
    return measure_response(simulate(*arguments, **options))


@pytest.mark.parametrize("delay", [0, 1, 2, 5])
@pytest.mark.parametrize("dynamics", [first_order, coupled])
def test_a_fixed_delay_is_found_exactly(dynamics, delay):
    response = measured(dynamics, (delay,), noise=0.0 if delay == 5 else 0.2, seed=delay)
    assert (response.lags, response.act_buf_len) == ((delay,), delay)
    assert not response.hidden_state


@pytest.mark.parametrize("dynamics", [first_order, coupled])
@pytest.mark.parametrize("delays", [(0, 1), (1, 2, 3), (2, 4)])
def test_of_a_random_delay_first_and_last_effect_are_found(dynamics, delays):
    response = measured(dynamics, delays, noise=0.1)
    assert (response.lags[0], response.lags[-1]) == (delays[0], delays[-1])
    assert response.shares.sum() == pytest.approx(1.0)
    assert np.flatnonzero(response.shares).tolist() == list(response.lags)


@pytest.mark.parametrize("delay", [0, 3])
def test_a_speed_that_is_hidden_is_distinguished_from_a_delay(delay):
    response = measured(speed_is_hidden, (delay,), 0.1, seed=delay)
    assert response.hidden_state
    assert response.lags == (delay,)


@pytest.mark.parametrize(("dynamics", "lags"), [(nothing, ()), (first_order, (1,))])
def test_actions_seem_to_act_that_do_not_as_rarely_as_is_promised(dynamics, lags):
    """This holds for older actions as well. With 1 % of wrong findings, at most 2 of 30 cases are
    wrong with a probability of 99 %.
    """
    options = {"noise": 0.1, "episodes": 2, "walk": 0.5}
    wrong = [measured(dynamics, (1,), seed=seed, **options).lags != lags for seed in range(30)]
    assert sum(wrong) <= 2


@pytest.mark.parametrize(("episodes", "steps"), [(1, 30), (200, 3)])
def test_too_few_steps_and_too_short_episodes_are_reported(episodes, steps):
    assert measured(coupled, (1,), episodes=episodes, steps=steps) is None


def test_episodes_shorter_than_the_longest_lag_are_looked_at_as_far_as_they_go():
    response = measured(first_order, (2,), episodes=80, steps=5)
    assert response.max_lag < MAX_LAG
    assert response.lags == (2,)


def test_features_are_numbers_as_they_are_and_pictures_as_a_few():
    space = spaces.Dict(camera=picture(4, 64, 48), lidar=spaces.Box(0.0, 9.0, (19,)))
    seen = [
        space.sample() | {"speed": i, "name": "car", "limits": [np.inf, 0.0]} for i in range(30)
    ]
    features, exact = to_features(seen)
    assert exact == 19 + 1  # constant features are left out
    assert features.shape == (30, exact + 8)
    assert np.isfinite(features).all()


def pictures_of(positions):
    """Return pictures, [32, 32, 1], each with a bright column."""
    columns = np.arange(32)
    return [np.tile(np.exp(-((columns - x) ** 2) / 12), (32, 1))[..., None] for x in positions]


def test_numbers_and_pictures_have_delays_of_their_own():
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (200, 1))
    where = np.concatenate([[0.0, 0.0], actions[:-1, 0]])
    late = np.concatenate([np.zeros(4), actions[:-3, 0]])
    features, whole = to_features(list(zip(pictures_of(16 + 4 * late), where, strict=True)))
    trace = Trace(actions, features)
    assert measure_response([trace], slice(0, whole)).lags == (1,)
    assert measure_response([trace], slice(whole, None)).lags == (3,)


def test_observations_without_numbers_show_nothing():
    features, _ = to_features(["a"] * 101)
    actions = np.random.default_rng(0).normal(size=(100, 1))
    assert measure_response([Trace(actions, features)]).lags == ()
