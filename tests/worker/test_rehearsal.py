"""A rehearsal leaves no trace: samples are the same with and without it, and none of the user's
functions is called.
"""

import itertools

import numpy as np
import torch
from house import alone
from kit.environments import acting, returning
from kit.fakes import CountingEnv

from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.base import tree
from tmrl_like.base.functional import partial
from tmrl_like.cli.check import taken


class Waiting(CountingEnv):
    """An environment that waits before each observation, long enough for `times` rehearsals."""

    def __init__(self, times, **options):
        super().__init__(**options)
        self.calls = 0
        self._times, self._call = times, None

    def while_waiting(self, call):
        self._call = call

    def _wait(self):
        for _ in range(self._times):
            self.calls += 1
            self._call()

    def reset(self, **options):
        if self._call is not None:
            self._wait()
        return super().reset(**options)

    def step(self, action):
        self._wait()
        return super().step(action)


def sampled(times):
    """Run a worker; return its samples as bytes without times, its counters, and how often there
    was time to rehearse.
    """
    np.random.seed(0)
    torch.manual_seed(0)
    calls = itertools.count()  # calls of the user's compressor and preprocessor

    def compress(*sample):
        return *sample[:5], {**sample[5], "number": next(calls)}

    worker = alone(
        partial(Waiting, times),
        partial(SquashedGaussianActor, hidden_sizes=(8,), noise_beta=1.0),
        sample_compressor=compress,
        obs_preprocessor=lambda obs: obs / np.float32(1 + next(calls)),
        crc_debug=True,
    )
    with worker, taken(worker) as take:
        for _ in range(3):
            worker.collect_train_episode(7)
        worker.run_episode(5)
        samples = [sample for block in take().blocks for sample in block.samples()]
        said, waited = worker.condition(), worker.env.calls
    parts = [(*sample, sample.info.original, sample.info.episode) for sample in samples]
    content = [np.asarray(leaf).tobytes() for leaf in tree.leaves(parts) if leaf is not None]
    return content, (said.env_steps, said.returns, said.safe_steps, next(calls)), waited


def test_samples_are_the_same_with_and_without():
    *without, none = sampled(0)
    *twice, some = sampled(2)
    assert twice == without
    assert none == 0
    assert some > 50


def test_an_actor_of_the_users_is_not_asked():
    asked = []
    actor_cls = acting(lambda obs: asked.append(obs) or np.zeros(1, np.float32))
    with alone(partial(Waiting, 3), actor_cls) as worker:
        worker.collect_train_episode(5)
        assert worker.env.calls > 10
    assert len(asked) == 5


def test_an_observation_that_the_policy_cannot_take_is_one_fault():
    """The environment made next has no fault, even if it waits before its first observation."""

    def grown(obs, *others):
        return np.zeros(3, np.float32) if obs.tolist() == [1, 2] else obs, *others

    actor = partial(SquashedGaussianActor, hidden_sizes=(8,))
    with alone(partial(returning(grown, Waiting), 1), actor) as worker:
        worker.run(nb_episodes=1, verbose=False)
        worker.run_episode(1)
        assert worker.condition().env_faults == 1


def test_each_environment_that_is_made_has_it():
    made = []

    class Broken(Waiting):
        def __init__(self):
            super().__init__(1, raise_at=0 if made else 3)
            made.append(self)

    with alone(Broken) as worker:
        worker.run(nb_episodes=2, verbose=False)
    assert [env.calls > 0 for env in made] == [True, True]
