"""Hundreds of histories of workers, servers and trainers, each determined by a seed; see
docs/reliability.md.
"""

import multiprocessing as mp
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest
from breaks import BREAKS, ROOT, seed_that_notices
from histories import live
from simulated_faults import kill_groups, lose_last_words

SEEDS, STEPS = 40, 800
HAPPENED = (
    "Ack",
    "Beat",
    "Bye",
    "Hello",
    "HelloWanted",
    "Refusal",
    "SamplePacket",
    "Welcome",
    "a connection was cut in two",
    "a group changed its size",
    "a lane waited for training",
    "a link outlived its robot",
    "a link was killed",
    "a message was doubled",
    "a message was lost",
    "a part left in good order",
    "a process was stopped",
    "a robot was killed",
    "a sample log was full",
    "a server was killed",
    "a trainer was killed",
    "a worker was killed",
    "entries of dead processes were taken over",
    "entries were asked for again",
    "killed at a line",
    "killed between turns",
    "messages were lost with their connection",
    "one direction was held up",
    "the power of a trainer was cut",
    "the power of a worker was cut",
    "time passed",
)
RARE = ("a robot came back while its old link lived",)


def histories(seeds, steps):
    counts = Counter()
    for seed in seeds:
        counts += live(seed, steps).counts
    return counts


@pytest.mark.fault(
    "disk",
    "the power of a worker with a spool is cut",
    "no sample comes twice, damaged, or where it does not belong",
)
@pytest.mark.fault(
    "network",
    "packets are lost, doubled and held up, each way",
    "each is in the memory once, in order",
)
@pytest.mark.fault(
    "processes",
    "all of it at once, in simulated histories",
    "nothing that was stored is lost; each sample once, in order",
)
def test_every_promise_holds_and_every_fault_happens():
    counts = histories(range(SEEDS), STEPS)
    assert [what for what in HAPPENED if not counts[what]] == []


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.fault(
    "processes",
    "all of it at once, in simulated histories",
    "nothing that was stored is lost; each sample once, in order",
)
def test_every_promise_holds_in_a_million_steps(figure):
    with ProcessPoolExecutor(mp_context=mp.get_context("spawn")) as processes:
        parts = [range(first, first + 50) for first in range(1000, 2000, 50)]
        counts = sum(processes.map(histories, parts, [1000] * len(parts)), Counter())
    assert [what for what in (*HAPPENED, *RARE) if not counts[what]] == []
    kills = sum(count for what, count in counts.items() if "killed" in what)
    cuts = counts["the power of a trainer was cut"] + counts["the power of a worker was cut"]
    figure(f"1,000,000 steps of seeds 1000 to 1999: {kills:,} kills, {cuts:,} power cuts")


def test_groups_that_change_their_size_have_each_sample_once():
    counts = sum((live(seed, STEPS, change=kill_groups).counts for seed in range(4)), Counter())
    assert counts["a group changed its size"] > 5


def test_a_worker_in_lockstep_goes_on_though_the_last_word_on_training_is_lost():
    counts = sum((live(seed, STEPS, change=lose_last_words).counts for seed in range(8)), Counter())
    assert counts["a message was lost"] > 5


def test_a_seed_is_a_history_to_the_byte():
    first, again, other = live(3, 500), live(3, 500), live(4, 500)
    assert (first.hash, first.counts) == (again.hash, again.counts)
    assert first.hash != other.hash


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.name)
def test_the_line_of_a_break_is_there(broken):
    assert (ROOT / "tmrl_like" / broken.path).read_text().count(broken.right) == 1


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.name)
def test_a_break_is_noticed(broken):
    assert seed_that_notices(broken)
