"""The metrics of a round."""

import weakref

import pytest
import torch
from kit.clocks import Clock
from kit.episodes import episode

from tmrl_like.trainer.round_metrics import RoundMetrics
from tmrl_like.types import ActionSource, Batch, Buffer, Delivery, StepTiming
from tmrl_like.wire.packet import PacketWriter

BATCH = Batch(*[torch.zeros(1)] * 6)


def packed(writer, ahead_s=0.0):
    return Delivery(Buffer(blocks=[writer.block()]), ahead_s=ahead_s)


def closed(metrics):
    record = {"training_steps_total": 6, "env_steps_total": 3, "workers": 2}
    metrics.on_round(record)
    return record


def test_losses_are_averaged_over_the_round_whether_tensors_or_numbers():
    metrics = RoundMetrics()
    for loss in (0.0, torch.tensor(4.0), torch.tensor(5.0)):
        metrics.on_step(BATCH, {"loss": loss, "lr": 0.5})
    expected = {"loss": 3.0, "lr": 0.5, "training_steps_per_env_step": 2.0, "workers": 2}
    assert closed(metrics).items() >= expected.items()


def test_what_a_loss_was_computed_from_is_not_kept_until_the_round_ends():
    metrics, weight, saved = RoundMetrics(), torch.ones(1, requires_grad=True), weakref.WeakSet()

    class Saved:
        def __init__(self, tensor):
            self.tensor = tensor
            saved.add(self)

    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda one: one.tensor):
        metrics.on_step(BATCH, {"loss": (weight * weight).sum()})
    assert not saved


def test_how_long_actions_took_and_how_many_were_safe_is_of_the_decisions():
    writer, metrics = PacketWriter(), RoundMetrics()
    for k in range(11):
        source = ActionSource.SAFE if k < 3 else ActionSource.POLICY
        writer.append(
            (0, 0, 0, 0, 0, {}), StepTiming(0.0, 0.001 * k, 0.0, 3, source), is_reset=k == 0
        )
    metrics.on_samples(packed(writer))
    record = closed(metrics)
    assert record["inference_p50_s"] == pytest.approx(0.0055, rel=1e-2)
    assert record["safe_action_share"] == pytest.approx(0.2)


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_ages_are_right_of_samples_whose_worker_has_another_clock(ahead_s, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("tmrl_like.base.clocks.unix_s", clock)
    writer, metrics = PacketWriter(), RoundMetrics()
    for version, clock.now in enumerate((1e9 - 9.0, 1e9 - 8.0, 1e9 - 7.0, 1e9 - 6.0), start=1):
        metrics.note_published(version)
    clock.now = 1e9
    writer.append((0, 0, 0, 0, 0, {}), StepTiming(1e9 + ahead_s - 2.0, 0.0, 0.0, 3))
    metrics.on_samples(packed(writer, ahead_s))
    clock.now += 10.0
    expected = {"sample_age_p50_s": 2.0, "policy_age_p50_s": 5.0, "policy_age_p999_s": 5.0}
    assert closed(metrics).items() >= (expected | {"policy_staleness_p50_versions": 1.0}).items()


def test_every_episode_of_every_worker_that_no_fault_ended_counts():
    metrics = RoundMetrics()
    tests = episode("a", return_=-1.0, test=True), episode("b", return_=-3.0, test=True)
    broken = episode("b", return_=0.0, test=True, terminated=False, fault="hangs")
    metrics.on_samples(Delivery(Buffer(), (*tests, broken)))
    metrics.on_samples(Delivery(Buffer(), (episode("a", return_=-10.0),)))
    expected = {"episodes_test": 2, "faults_test": 1, "return_test_mean": -2.0}
    expected |= {"episodes_train": 1, "faults_train": 0, "return_train_mean": -10.0}
    assert closed(metrics).items() >= (expected | {"terminated_test_share": 1.0}).items()
