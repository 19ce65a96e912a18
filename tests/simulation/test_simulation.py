"""Hundreds of histories of server, workers and trainers, each from a seed; docs/reliability.md says what is in them."""

import multiprocessing as mp
import subprocess
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from histories import live
from simulated_faults import let_clocks_jump

SEEDS, STEPS = 25, 800
MESSAGES = "Ack Beat Bundle Bye Hello HelloWanted Refusal Welcome"
HAPPENED = (
    *MESSAGES.split(),
    "a clock jumped",
    "a connection was cut in two",
    "a disk was full",
    "a link outlived its worker",
    "a link was killed",
    "a message was doubled",
    "a part left in good order",
    "a process was stopped",
    "a server was killed",
    "a sync failed",
    "a trainer was killed",
    "a worker came back while its old link lived",
    "a worker was killed",
    "a write took long",
    "an environment was killed",
    "another training took the seat",
    "killed at a line",
    "killed between turns",
    "killed in a write",
    "messages were lost with their connection",
    "one direction was held up",
    "packets of dead processes were taken over",
    "packets were asked for again",
    "samples came too late",
    "samples were dropped",
    "the power of a worker was cut",
    "the power was cut",
    "time passed",
)
RARE = ("Dismissal", "a misfit was told to leave", "a worker was rejected")


def histories(seeds, steps):
    counts = Counter()
    for seed in seeds:
        counts += live(seed, steps).counts
    return counts


@pytest.mark.fault(
    "disk", "the power of a worker with a spool is cut", "no sample comes twice, damaged, or where it does not belong"
)
@pytest.mark.fault("network", "packets are lost, doubled and held up, each way", "each is in the memory once, in order")
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
    figure(f"1,000,000 steps of seeds 1000 to 1999: {kills:,} kills, {counts['the power was cut']:,} power cuts")


@pytest.mark.fault(
    "clocks", "clocks jump by an hour all the time, in simulated histories", "no young sample is dropped"
)
def test_while_clocks_jump_only_old_samples_are_dropped():
    worlds = [live(seed, STEPS, change=let_clocks_jump) for seed in range(4)]
    assert all(world.counts["a clock jumped"] > 20 for world in worlds)


def test_a_seed_is_a_history_to_the_byte():
    first, again, other = live(3, 500), live(3, 500), live(4, 500)
    assert (first.hash, first.counts) == (again.hash, again.counts)
    assert first.hash != other.hash


@pytest.mark.chaos
def test_a_seed_is_the_same_history_in_another_process():
    """Where strings have other hashes, and sets another order."""

    def lines(hash_seed):
        command = [sys.executable, str(Path(__file__).with_name("simulate.py")), "0", "30", "--up-to"]
        done = subprocess.run(command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
        return [line for line in done.stdout.splitlines() if line.startswith("seed")]

    assert lines("1") == lines("2")
    assert len(lines("1")) == 30
