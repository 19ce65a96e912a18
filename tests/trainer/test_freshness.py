"""Samples that come too late stay out of the memory, and leave no false transition behind."""

import pytest
from list_memory import ListMemory as ActionListMemory

from tmrl_like.base.functional import partial
from tmrl_like.config.settings import TrainerSection
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.errors import ConfigError
from tmrl_like.replay import DropHistory, ReplayMemory, check_transition
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, ListMemory
from tmrl_like.testing.memories import ActionBufferEnv, cut
from tmrl_like.trainer.sample_ages import FreshnessLimits
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.types import StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter, encode_rows

NOW = 1e9


def timing(observed_at_s):
    return StepTiming(observed_at_s, 0.001, 0.0, 1)


def training(memory_cls, **limits):
    return TrainingOffline(CountingEnv, memory_cls, CountingAgent, **limits)


def packet(age_s=0.0, version=1, samples=3, worker="w"):
    return m.SamplePacket(worker, 1, 1, max(1, samples), 1, 0, samples, 0, False, NOW - age_s, version)


@pytest.mark.parametrize(
    ("header", "is_taken"),
    [
        (packet(9.0, version=10), True),
        (packet(11.0, version=10), False),
        (packet(0.0, version=5), True),
        (packet(0.0, version=4), False),
        (packet(0.0, version=0), True),  # of no published policy
        (packet(0.0, version=2000), True),  # of an earlier trainer
        (packet(11.0, samples=0), True),  # episodes alone
    ],
)
def test_a_packet_is_too_old_by_its_first_sample_or_its_oldest_policy(header, is_taken):
    limits = FreshnessLimits(max_age_s=10.0, max_lag_versions=5)
    assert limits.admit(header, NOW, 10) == is_taken
    assert limits.dropped_samples == (0 if is_taken else 3)


def numbers(steps):
    return {int(step.sample.obs[0][1]) for step in steps if not step.is_reset}


@pytest.mark.parametrize("memory_cls", [partial(ReplayMemory, act_buf_len=4), ActionListMemory])
def test_what_is_dropped_is_counted_confirmed_and_in_no_transition(memory_cls):
    steps = ActionBufferEnv(1).take(300)
    memory, dropped = memory_cls(crc_debug=True), []
    limits, receiver = FreshnessLimits(max_age_s=10.0), Receiver()
    for number, piece in enumerate(cut(steps, [23])):
        is_late = number in (2, 5, 6, 11)
        dropped += piece if is_late else []
        writer = PacketWriter()
        for step in piece:
            compressed = DropHistory(4)(*step.sample)
            writer.append((*compressed, step.original), timing(NOW - 30.0 * is_late), step.is_reset)
        entries = {"first": 23 * number + 1, "last": 23 * number + len(piece), "oldest": 1, "breaks": 0}
        data = encode_rows(writer.rows(), Compressor(), worker="w", incarnation=1, **entries)
        (delivery,) = receiver.take(*m.decode(data), data, 0.0, lambda header: limits.admit(header, NOW, 1))
        memory.append(delivery.buffer)
        receiver.confirm([delivery.receipt])
    receiver.write(0.0)
    memory.flush()
    assert [(ack.stored, ack.received) for ack in receiver.due()] == [(300, 300)]
    assert limits.dropped_samples == len(dropped) == 4 * 23
    assert receiver.samples == 300 - 4 * 23
    transitions = [memory.get_transition(item) for item in range(len(memory))]
    stored = [transition for transition in transitions if memory.is_trainable(transition)]
    for transition in stored:
        check_transition(transition[-1].original, transition)
    found = {int(transition[3][0][1]) for transition in stored}
    assert found <= numbers(steps) - numbers(dropped)
    assert len(found) > 80


@pytest.mark.parametrize("name", ["max_sample_age_s", "max_policy_lag_versions"])
def test_limits_are_positive(name):
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        training(ListMemory, **{name: 0})
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        TrainerSection(**{name: 0})


def test_that_samples_are_dropped_is_logged_again_for_each_worker_and_limit_and_at_long_intervals(caplog):
    limits = FreshnessLimits(max_age_s=10.0, max_lag_versions=5)

    def drop(worker, age_s, version=10, now=NOW):
        caplog.clear()
        assert not limits.admit(packet(age_s, version, worker=worker), now, 10)
        return [r.getMessage() for r in caplog.records]

    (line,) = drop("arm", 30.0)
    assert "arm" in line
    assert "30 s old" in line
    assert drop("arm", 31.0) == []
    (line,) = drop("leg", 3600.0)
    assert "leg" in line
    (line,) = drop("arm", 0.0, version=1)
    assert "9 versions" in line
    assert [drop("arm", 30.0), drop("leg", 30.0), drop("arm", 0.0, version=1)] == [[], [], []]
    (line,) = drop("arm", 30.0, now=NOW + 3600.0)
    assert f"{limits.dropped_samples} samples" in line
    assert drop("arm", 30.0, now=NOW + 3600.0) == []


def test_names_of_workers_cannot_fill_the_log(caplog):
    limits = FreshnessLimits(max_age_s=10.0)
    for k in range(1000):
        limits.admit(packet(30.0, worker=f"w{k}"), NOW, 1)
    assert len(caplog.records) == 100
