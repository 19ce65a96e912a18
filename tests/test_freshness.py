"""Samples that come too late stay out of the memory, and leave no false transition behind."""

import math
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tmrl_like.checkpoint import load_checkpoint, save_checkpoint
from tmrl_like.config.experiment import Settings, TrainerSection, WorkerSection
from tmrl_like.errors import ConfigError
from tmrl_like.freshness import StaleFilter, StoredAges
from tmrl_like.memories import ReplayMemory
from tmrl_like.metrics.rounds import RoundMetrics
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, ListMemory
from tmrl_like.testing.memories import MemoryContract, cut, packed
from tmrl_like.training_offline import TrainingOffline
from tmrl_like.types import Buffer, Delivery, Receipt, StepTiming
from tmrl_like.util import partial

sys.path.insert(0, str(Path(__file__).parent / "memories"))
from list_memory import ListMemory as ActionListMemory

WHOLE = partial(ReplayMemory, act_buf_len=4, crc_debug=True)


def timing(age_s=0.0, version=1) -> StepTiming:
    return StepTiming(time.time() - age_s, 0.001, 0.0, version)


class Line:
    """A trainer's connection that has packets ready."""

    newest_version = 10

    def __init__(self, buffers) -> None:
        self.deliveries = [Delivery(buffer, (), Receipt("w", 1, number)) for number, buffer in enumerate(buffers)]
        self.confirmed = []

    def retrieve(self, timeout_s=0.0):
        deliveries, self.deliveries = self.deliveries, []
        return deliveries

    def confirm(self, deliveries, stored=False) -> None:
        self.confirmed += [delivery.receipt.sequence for delivery in deliveries]

    def refuse(self, receipt, reason):
        raise AssertionError(reason)

    def published_at(self, version):
        return None

    def fleet(self):
        return {}

    def broadcast_model(self, model):
        return 1


class Checks(MemoryContract):
    """The contract's own eyes; its tests run elsewhere."""

    __test__ = False


def training(memory_cls, **limits) -> TrainingOffline:
    return TrainingOffline(CountingEnv, memory_cls, CountingAgent, **limits)


def feed(to: TrainingOffline, line: Line) -> dict:
    metrics = RoundMetrics(0, 0)
    to._update_buffer(line, metrics)
    return to._close_round(line, metrics)


@pytest.mark.parametrize("memory_cls", [partial(ReplayMemory, act_buf_len=4), ActionListMemory])
@pytest.mark.parametrize("old", [(30.0, 10), (0.0, 4)], ids=["age", "versions"])
def test_what_is_dropped_is_counted_confirmed_and_in_no_transition(memory_cls, old, caplog):
    checks = Checks()
    steps = checks._produce(1)
    to = training(partial(memory_cls, crc_debug=True), max_sample_age_s=10.0, max_policy_lag_versions=5)
    late = (2, 5, 6, 11)
    line = Line(
        packed(piece, "w", checks.compress, timing=timing(*old) if number in late else timing(0.0, 7))
        for number, piece in enumerate(cut(steps, [23]))
    )
    packets = len(line.deliveries)
    record = feed(to, line)
    to.memory.flush()
    assert line.confirmed == list(range(packets))
    assert record["dropped_stale_samples_total"] == 4 * 23
    assert record["env_steps_total"] == to.total_samples == len(steps) - 4 * 23
    checks._check_all(to.memory, [steps])
    stored = {count for _, count in checks._identities(to.memory)}
    assert not stored & {count for number in late for count in range(23 * number, 23 * number + 23)}
    assert len(stored) > 150
    assert len([r for r in caplog.records if "are dropped" in r.message]) == 1


def test_a_memory_that_knows_nothing_of_packets_sees_another_stream():
    to = training(ListMemory, max_sample_age_s=10.0)
    steps = Checks()._produce(1)
    ages = (0, 30, 0, 0, 30, 0)
    buffers = [packed(p, "w", timing=timing(a)) for p, a in zip(cut(steps, [10]), ages, strict=False)]
    admitted = [to.stale.admit(buffer, 1) for buffer in buffers]
    streams = [buffer.stream for buffer in admitted if buffer is not None]
    assert [buffer is None for buffer in admitted] == [False, True, False, False, True, False]
    assert streams[1] == streams[2]
    assert len(set(streams)) == 3


def test_a_restart_between_the_gap_and_what_follows_forgets_nothing(tmp_path):
    checks = Checks()
    steps = checks._produce(1)
    first, second = (training(WHOLE, max_sample_age_s=10.0) for _ in range(2))
    feed(first, Line([packed(steps[:50], "w", checks.compress, timing=timing())]))
    feed(first, Line([packed(steps[50:60], "w", checks.compress, timing=timing(30.0))]))
    save_checkpoint(first, tmp_path)
    load_checkpoint(second, tmp_path, memory_only=True)
    record = feed(second, Line([packed(steps[60:], "w", checks.compress, timing=timing())]))
    assert record["dropped_stale_samples_total"] == 10
    checks._check_all(second.memory, [steps])


def test_samples_of_no_published_policy_have_no_lag_and_empty_buffers_no_age():
    stale = StaleFilter(max_age_s=10.0, max_lag_versions=1)
    steps = Checks()._produce(1)[:5]
    assert stale.admit(packed(steps, timing=timing(0.0, 0)), 1000) is not None
    assert stale.admit(packed(steps, timing=timing(0.0, 2000)), 1000) is not None  # of an earlier trainer
    assert stale.admit(Buffer(), 1000) is not None
    assert stale.dropped_samples == 0


@pytest.mark.parametrize("name", ["max_sample_age_s", "max_policy_lag_versions"])
def test_limits_are_positive_and_not_for_workers_that_wait(name):
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        training(ListMemory, **{name: 0})
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        TrainerSection(**{name: 0})
    with pytest.raises(ConfigError, match=rf"trainer.{name} is 7; with worker.synchronous"):
        Settings(worker=WorkerSection(synchronous=True, max_steps_per_update=1e9), trainer=TrainerSection(**{name: 7}))


def test_ages_in_the_memory_are_those_of_what_is_still_there(monkeypatch):
    monkeypatch.setattr("tmrl_like.freshness.time.time", lambda: 10_000.0)
    ages = StoredAges(capacity=1000)
    assert ages.metrics() == {}
    for k in range(500):
        ages.add(np.arange(10 * k, 10 * k + 10, dtype=np.float64))
    metrics = ages.metrics()  # there: samples 4000 to 4999
    assert metrics["memory_age_max_s"] == pytest.approx(6000, abs=10)
    assert metrics["memory_age_p50_s"] == pytest.approx(5500, abs=10)


def test_the_record_of_ages_stays_small_whatever_the_size_of_packets():
    ages = StoredAges(capacity=1_000_000)
    for k in range(20_000):
        ages.add(np.full(1, float(k)))
    assert len(ages._entries) < 20
    assert ages._samples == 20_000
    assert math.isclose(sum(e.samples * e.mean_s for e in ages._entries) / 20_000, 9999.5, rel_tol=1e-9)
