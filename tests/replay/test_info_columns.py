"""Items of `info` that the memory keeps as columns."""

import numpy as np
import pytest
import torch

from tmrl_like.errors import MemoryContractError
from tmrl_like.replay import ReplayMemory, WithDemonstrations
from tmrl_like.types import Buffer, Info, Sample

NAMES = ("progress", "values")


def samples(progress=np.float32, name="progress"):
    """Yield the samples of two episodes; those of resets have none of the items."""
    for k in range(30):
        info = Info({name: progress(k), "values": np.arange(k, k + 3.0), "text": "left out"})
        if k in (0, 15):
            info = Info(is_reset=True)
        yield Sample(0, np.float32(k), 0.0, False, False, info)


def filled(**arguments):
    memory = ReplayMemory(columns=NAMES, **arguments)
    memory.append(Buffer(list(samples()), "w"))
    return memory


def check(memory):
    for item in range(len(memory)):
        transition = memory.get_transition(item)
        k = int(transition.obs)
        assert type(transition.info["progress"]) is np.float32
        assert transition.info.keys() == set(NAMES)
        assert (transition.info["progress"], *transition.info["values"]) == (k, k, k + 1, k + 2)
    for _ in range(5):  # later batches are drawn together
        batch = memory.sample()
        assert batch.columns["progress"].tolist() == batch.next_obs.tolist()
        assert batch.columns["values"][:, 2].tolist() == (batch.next_obs + 2).tolist()
        assert batch.columns["values"].dtype == torch.float64


@pytest.mark.parametrize(
    "arguments",
    [{}, {"obs_preprocessor": lambda obs: obs}],
    ids=["plain", "preprocessor"],
)
def test_what_info_says_comes_back_with_the_transition(arguments):
    check(filled(**arguments))


def test_columns_of_own_samples_and_demonstrations_are_joined():
    memory = WithDemonstrations(lambda **kw: ReplayMemory(columns=NAMES, batch_size=10, **kw))
    memory.own.append(Buffer(list(samples()), "w"))
    memory.demonstrations.append(Buffer(list(samples()), "e"))
    assert memory.columns == NAMES
    check(memory)


@pytest.mark.parametrize("first", [True, False])
def test_a_step_that_lacks_an_item_is_refused_by_its_name(first):
    memory = ReplayMemory(columns=NAMES) if first else filled()
    before = len(memory)
    with pytest.raises(MemoryContractError, match="info has no 'progress', which the memory keeps"):
        memory.append(Buffer(list(samples(name="other")), "w"))
    assert len(memory) == before


@pytest.mark.parametrize("bad", [str, lambda k: np.zeros(k)])
def test_an_item_that_is_no_number_or_changes_its_form_is_refused(bad):
    with pytest.raises(MemoryContractError, match="info\\['progress'\\]"):
        filled().append(Buffer(list(samples(progress=bad)), "w"))


def test_a_flag_that_rewards_depend_on_is_a_single_number():
    flags = list(samples(progress=lambda k: np.zeros(2), name="greedy"))
    with pytest.raises(MemoryContractError, match="greedy'\\] is not a single number"):
        ReplayMemory(greedy_only=True).append(Buffer(flags, "w"))


@pytest.mark.parametrize("value", ["soon", float("nan")])
def test_an_environment_s_own_count_down_is_not_looked_at(value):
    memory = ReplayMemory(columns=("steps_to_end",))
    assert memory.columns == ()  # of those that are checked
    memory.append(Buffer(list(samples(progress=lambda k: value, name="steps_to_end")), "w"))
    assert memory.get_transition(0).info["steps_to_end"] > 0
