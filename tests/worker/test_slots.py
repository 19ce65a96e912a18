"""Policies in shared memory: a policy that one process acts with is never overwritten by the
other.
"""

import random

import numpy as np
import pytest

from tmrl_like.worker.slots import PolicySlots

MANIFEST = {"layer.weight": ("F32", (2, 3)), "steps": ("I64", ()), "nothing": ("F32", (0,))}


@pytest.fixture
def link(tmp_path):
    return PolicySlots(tmp_path, MANIFEST, 5)


@pytest.fixture
def loop(tmp_path, link):
    return PolicySlots(tmp_path, MANIFEST, 5)


def fill(slots, slot, value):
    slots.slots[slot].arrays()["layer.weight"][:] = value


def test_a_policy_that_one_side_publishes_the_other_takes(link, loop):
    assert loop.ready[0] == 0
    slot = link.free_slot()
    fill(link, slot, 7)
    word = link.publish(slot, 3, 1e9, 12.5)
    assert (loop.ready[0], loop.has_new()) == (word, True)
    assert loop.take() == (word, 3, 1e9, 12.5, slot)
    assert not link.has_new()
    parameters = loop.slots[slot].arrays()
    forms = {name: (values.dtype, values.shape) for name, values in parameters.items()}
    assert forms == {
        "layer.weight": (np.float32, (2, 3)),
        "steps": (np.int64, ()),
        "nothing": (np.float32, (0,)),
    }
    assert (parameters["layer.weight"] == 7).all()


def test_the_input_is_one_piece_of_memory(link, loop):
    loop.input[:] = range(5)
    assert link.input.tolist() == [0, 1, 2, 3, 4]


def test_another_link_goes_on_where_the_one_before_was(link, loop, tmp_path):
    for version in (1, 2):
        link.publish(link.free_slot(), version, 0.0, 0.0)
        loop.take()
    successor = PolicySlots(tmp_path, MANIFEST, 5)
    assert (successor.ready[0], successor.has_new()) == (loop.ready[0], False)
    assert successor.free_slot() != loop.take().slot


class Interrupted(PolicySlots):
    """Slots that call `meanwhile` in the middle of taking a policy, as if the process had been
    preempted.
    """

    meanwhile = staticmethod(lambda: None)

    def _order(self):
        self.meanwhile()
        super()._order()


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_no_slot_is_filled_that_is_or_may_be_acted_with(seed, lanes, tmp_path):
    dice = random.Random(seed)
    link, loop = (cls(tmp_path, MANIFEST, 5, lanes) for cls in (PolicySlots, Interrupted))
    acting, version = {}, 0

    def publish():
        nonlocal version
        version += 1
        slot = link.free_slot()
        fill(link, slot, version)
        link.publish(slot, version, 0.0, 0.0)

    loop.meanwhile = lambda: [publish() for _ in range(dice.choice([0, 0, 1, 3]))]
    publish()
    for _ in range(100):
        lane = dice.randrange(lanes)
        policy = loop.take(lane)
        acting[lane] = loop.slots[policy.slot].arrays()["layer.weight"], policy.version
        for _ in range(dice.randrange(4)):
            publish()
        assert all((weights == of_version).all() for weights, of_version in acting.values())


def test_what_is_not_the_newest_any_more_when_it_is_taken_is_not_acted_with(link, loop):
    def publish(version):
        link.publish(link.free_slot(), version, 0.0, 0.0)

    class Words:
        """Words that change because policies are published between loading the newest and storing
        the taken one.
        """

        def __init__(self, words):
            self.words, self.newer = words, [2, 3]

        def __getitem__(self, i):
            return self.words[i]

        def __setitem__(self, i, value):
            while self.newer:
                publish(self.newer.pop(0))
            self.words[i] = value

    publish(1)
    loop._words = Words(loop._words)
    assert loop.take().version == 3
