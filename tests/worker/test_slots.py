"""Policies in shared memory: a policy that one process acts with is never overwritten by the
other.
"""

import itertools
import random
import sys

import pytest

from tmrl_like.worker.slots import PolicySlots

MANIFEST = {"layer.weight": ("F32", (2, 3))}


@pytest.fixture
def link(tmp_path):
    return PolicySlots(tmp_path, MANIFEST, 5)


@pytest.fixture
def loop(tmp_path, link):
    return PolicySlots(tmp_path, MANIFEST, 5)


def fill(slots, slot, value):
    slots.slots[slot].arrays()["layer.weight"][:] = value


def test_a_policy_that_one_side_publishes_the_other_takes_and_its_input_the_first_one_sees(
    link, loop
):
    loop.input[:] = range(5)
    assert loop.ready[0] == 0
    slot = link.free_slot()
    fill(link, slot, 7)
    word = link.publish(slot, 3, 1e9, 12.5)
    assert (loop.ready[0], loop.has_new()) == (word, True)
    assert loop.take() == (word, 3, 12.5, slot)
    assert not link.has_new()
    assert loop.slots[slot].arrays()["layer.weight"].tolist() == [[7, 7, 7]] * 2
    assert link.input.tolist() == [0, 1, 2, 3, 4]


def test_another_link_goes_on_where_the_one_before_was(link, loop, tmp_path):
    for version in (1, 2):
        link.publish(link.free_slot(), version, 0.0, 0.0)
        loop.take()
    successor = PolicySlots(tmp_path, MANIFEST, 5)
    assert (successor.ready[0], successor.has_new()) == (loop.ready[0], False)
    assert successor.free_slot() != loop.take().slot


def preempted(meanwhile, call, *arguments):
    """Return what a call returns. Before each of its instructions, `meanwhile` is called, as if the
    process had been preempted.
    """

    def trace(frame, event, argument):
        frame.f_trace_opcodes = True
        if event == "opcode":
            meanwhile()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call(*arguments)
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_no_slot_is_filled_that_is_or_may_be_acted_with(seed, lanes, tmp_path):
    dice, acting = random.Random(seed), {}
    link, loop = (PolicySlots(tmp_path, MANIFEST, 5, lanes) for _ in range(2))

    def publishing():
        for version in itertools.count(1):
            slot = link.free_slot()
            yield
            fill(link, slot, version)
            yield
            link.publish(slot, version, 0.0, 0.0)

    steps = publishing()

    def publish_for_a_while():
        for _ in itertools.islice(steps, dice.choice([0, 0, 1, 2, 3, 7])):
            pass

    def publish_sometimes():
        if dice.random() < 0.05:
            publish_for_a_while()

    for _ in range(200):
        publish_for_a_while()
        lane = dice.randrange(lanes)
        policy = preempted(publish_sometimes, loop.take, lane)
        acting[lane] = loop.slots[policy.slot].arrays()["layer.weight"], policy.version
        assert all((weights == of_version).all() for weights, of_version in acting.values())
