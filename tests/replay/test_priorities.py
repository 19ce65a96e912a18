from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tmrl_like.errors import ConfigError, MemoryContractError
from tmrl_like.replay import Prioritised, ReplayMemory
from tmrl_like.replay.priorities import Priorities, SumTree
from tmrl_like.testing.memories import ActionBufferEnv, cut, interleaved, packed


def filled(steps=200, **kwargs):
    memory = ReplayMemory(**{"batch_size": 64, "prioritised": Prioritised(), **kwargs})
    memory.append(packed(ActionBufferEnv(1, 0).take(steps), "w"))
    memory.seed(1)
    return memory


def frequencies(memory, batches=300):
    """How often each row is drawn, float [capacity]."""
    drawn = np.concatenate([memory.sample().drawn for _ in range(batches)]) % memory.memory_size
    return np.bincount(drawn, minlength=memory.memory_size) / len(drawn)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 3000),
    puts=st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 50)), min_size=1, max_size=8),
)
def test_a_tree_finds_what_a_running_sum_over_all_leaves_finds(size, puts):
    tree, plain = SumTree(size), np.zeros(size)
    for seed, zeros in puts:
        rng = np.random.default_rng(seed)
        leaves = rng.integers(0, size, 40)
        values = rng.integers(0, 9, 40).astype(float)  # whole numbers: sums are exact
        values[: zeros % 40] = 0
        last = {int(leaf): value for leaf, value in zip(leaves, values, strict=True)}
        tree.put(leaves, values)
        plain[list(last)] = list(last.values())
    assert tree.total == plain.sum()
    assert tree.leaves[:size].tolist() == plain.tolist()
    if plain.sum():
        marks = np.random.default_rng(0).random(200) * plain.sum()
        assert tree.find(marks).tolist() == plain.cumsum().searchsorted(marks, side="right").tolist()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 5000), scale=st.integers(0, 15))
def test_rounding_never_finds_a_leaf_of_zero(seed, size, scale):
    rng = np.random.default_rng(seed)
    values = rng.random(size) ** scale * (rng.random(size) < 0.3)
    values[rng.integers(size)] = 1e-12
    tree = SumTree(size)
    tree.put(np.arange(size), values)
    marks = np.append(rng.random(500), (0.0, 1.0, np.nextafter(1.0, 0))) * tree.total
    assert (values[tree.find(marks)] > 0).all()


def test_new_transitions_are_drawn_equally_and_weigh_the_same():
    memory = filled(150)
    batch = memory.sample()
    assert batch.weight.dtype == torch.float32
    assert batch.weight.tolist() == [1.0] * 64
    shares = frequencies(memory)[memory._lanes.training.rows]
    assert shares.min() > 0.5 / len(memory)
    assert shares.max() < 2.0 / len(memory)


def test_the_share_of_a_transition_follows_its_error():
    memory = filled(40, prioritised=Prioritised(alpha=0.5, epsilon=1e-9))
    rows = memory._lanes.training.rows.astype(np.intp)
    errors = np.linspace(0.1, 4.0, len(rows))
    memory.feed_back(memory._lanes.numbers_of(rows), torch.tensor(-errors))
    assert frequencies(memory)[rows] == pytest.approx(errors**0.5 / (errors**0.5).sum(), rel=0.15)


def test_weights_make_up_for_the_draw():
    memory = filled(60, prioritised=Prioritised(alpha=1.0, beta=1.0))
    rows = memory._lanes.training.rows.astype(np.intp)
    errors = np.random.default_rng(0).random(len(rows)) + 0.1
    memory.feed_back(memory._lanes.numbers_of(rows), errors)
    batch = memory.sample()
    by_row = dict(zip(rows.tolist(), errors, strict=True))
    drawn = np.array([by_row[number % memory.memory_size] for number in batch.drawn.tolist()])
    assert batch.weight.numpy() == pytest.approx(drawn.min() / drawn, rel=1e-4)


def test_beta_grows_to_one():
    memory = filled(prioritised=Prioritised(beta=0.4, beta_batches=10))
    betas = []
    for _ in range(12):
        betas.append(memory._priorities.beta)
        memory.sample()
    assert betas == pytest.approx([0.4 + 0.06 * k for k in range(10)] + [1.0, 1.0])


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    memory_size=st.integers(1, 90),
    act_buf_len=st.integers(0, 3),
)
def test_exactly_the_whole_transitions_have_a_priority(sizes, memory_size, act_buf_len):
    memory = ReplayMemory(memory_size=memory_size, act_buf_len=act_buf_len, prioritised=Prioritised(), batch_size=8)
    streams = [list(cut(ActionBufferEnv(w, act_buf_len, False).take(100), sizes)) for w in range(2)]
    for number, steps in interleaved(streams):
        memory.append(packed(steps, f"w{number}"))
        assert np.flatnonzero(memory._priorities.powers).tolist() == sorted(memory._lanes.training.rows.tolist())
        if memory.ready:
            batch = memory.sample()
            assert (batch.drawn >= memory._lanes.oldest).all()
            assert set((batch.drawn % memory_size).tolist()) <= set(memory._lanes.training.rows.tolist())
            memory.feed_back(batch.drawn, np.random.default_rng(memory_size).random(8))


def test_a_batch_holds_the_transitions_that_were_drawn():
    memory = filled(100, act_buf_len=0)
    batch = memory.sample()
    for k, number in enumerate(batch.drawn.tolist()):
        assert int(batch.next_obs[0][k][1]) == number  # the environment counts as the memory does
    assert memory.sample_indices().max() < len(memory)


def test_errors_on_transitions_that_are_gone_change_nothing():
    memory = filled(100, memory_size=100)
    batch = memory.sample()
    memory.append(packed(ActionBufferEnv(2, 0).take(100), "v"))
    before = memory._priorities.powers.copy()
    memory.feed_back(batch.drawn, np.full(64, 7.0))
    assert memory._priorities.powers.tolist() == before.tolist()


def test_errors_that_are_not_finite_change_nothing():
    memory = filled(100)
    batch = memory.sample()
    before = memory._priorities.powers.copy()
    memory.feed_back(batch.drawn, np.array([np.nan, np.inf] * 32))
    assert memory._priorities.powers.tolist() == before.tolist()
    with pytest.raises(MemoryContractError, match="one per transition"):
        memory.feed_back(batch.drawn, np.ones(3))


@pytest.mark.parametrize("wrong", [{"alpha": -1.0}, {"beta": 1.5}, {"beta_batches": 0}, {"epsilon": 0.0}])
def test_options_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match="alpha is 0 or more"):
        Prioritised(**wrong)


def test_new_transitions_get_the_largest_error_seen():
    priorities = Priorities(10, Prioritised(alpha=1.0, epsilon=0.5))
    priorities.admit(np.array([0]))
    priorities.update(np.array([0]), np.array([3.0]))
    priorities.update(np.array([0]), np.array([1.0]))
    priorities.admit(np.array([1]))
    assert priorities.powers[:3].tolist() == [1.5, 3.5, 0.0]
