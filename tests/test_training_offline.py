"""What training does with a packet that does not fit the memory, without a network."""

import numpy as np
import pytest

from tmrl_like.errors import MemoryContractError, PipelineMismatchError
from tmrl_like.memories import ReplayMemory
from tmrl_like.metrics.rounds import RoundMetrics
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, ListMemory
from tmrl_like.training_offline import TrainingOffline
from tmrl_like.types import Buffer, Delivery, EpisodeStats, Info, Receipt, Sample
from tmrl_like.util import partial


class OfOneShape(ListMemory):
    """A user's memory that minds the shape of what it is given."""

    min_run = 1
    error = MemoryContractError

    def append_buffer(self, buffer):
        shapes = {sample.obs.shape for sample in (*self.data, *buffer)}
        if shapes != {(2,)}:
            raise self.error(f"obs has the shapes {shapes}")
        super().append_buffer(buffer)


class Network:
    """Hands over what it is given, and notes what it is told."""

    newest_version = 0

    def __init__(self, *deliveries):
        self.deliveries = list(deliveries)
        self.confirmed, self.refused, self.published = [], [], []

    def retrieve(self, timeout_s=0.0):
        deliveries, self.deliveries = self.deliveries, []
        return deliveries

    def confirm(self, deliveries, stored=False):
        self.confirmed += [(delivery.receipt.worker, delivery.receipt.sequence) for delivery in deliveries]

    def refuse(self, receipt, reason):
        self.refused.append((receipt, reason))

    def broadcast_model(self, model):
        self.published.append(model.layer.bias.item())  # of a `CountingAgent`: its training steps
        return len(self.published)

    def published_at(self, version):
        return None

    def fleet(self):
        return {}


def packet(worker, sequence, length=2, session=1, resets=True):
    samples = [
        Sample(0, np.full(length, k, np.float32), 0.0, False, False, Info(is_reset=resets and k == 0)) for k in range(3)
    ]
    episode = EpisodeStats(worker, False, 1.0, 2, True, False, 0.0, 0)
    return Delivery(Buffer(samples, f"{worker}/{session}/1/0"), (episode,), Receipt(worker, session, sequence))


def training(memory_cls, **fields):
    return TrainingOffline(CountingEnv, partial(memory_cls, batch_size=4), CountingAgent, **fields)


def feed(to, network):
    metrics = RoundMetrics(0, 0)
    to._update_buffer(network, metrics)
    return to._close_round(network, metrics)


@pytest.mark.parametrize("memory_cls", [ReplayMemory, OfOneShape])
def test_a_worker_whose_samples_do_not_fit_is_refused_and_the_others_are_stored(memory_cls):
    to = training(memory_cls)
    network = Network(packet("a", 1), packet("b", 1, 3), packet("b", 2), packet("a", 2))
    record = feed(to, network)
    assert network.confirmed == [("a", 1), ("a", 2)]
    ((receipt, reason),) = network.refused
    assert receipt == Receipt("b", 1, 1)
    assert "obs" in reason
    assert record["env_steps_total"] == to.total_samples == 6
    assert record["episodes_train"] == 2
    network = Network(packet("b", 1, session=2))
    feed(to, network)
    assert network.confirmed == [("b", 1)]


def test_nothing_is_confirmed_where_nothing_was_stored():
    to = training(ReplayMemory)
    feed(to, Network(packet("a", 1)))
    network = Network(packet("b", 1, 3))
    network.confirm = None
    feed(to, network)
    assert len(network.refused) == 1


def test_the_first_samples_that_do_not_fit_the_memorys_own_arguments_end_training():
    to = training(partial(ReplayMemory, frame_stack={"camera": 4}))
    with pytest.raises(MemoryContractError, match="frame_stack names the items"):
        feed(to, Network(packet("a", 1)))
    with pytest.raises(MemoryContractError, match="shapes"):
        feed(training(OfOneShape), Network(packet("a", 1, 3)))


@pytest.mark.parametrize("error", [PipelineMismatchError, ValueError])
def test_another_error_of_the_memory_ends_training(error, monkeypatch):
    to = training(OfOneShape)
    feed(to, Network(packet("a", 1)))
    monkeypatch.setattr(OfOneShape, "error", error)
    with pytest.raises(error):
        feed(to, Network(packet("a", 2, 3)))


def test_weights_are_published_at_their_interval():
    to = training(ReplayMemory, rounds=2, steps=10, update_model_interval=4, max_training_steps_per_env_step=10)
    network = Network(packet("a", 1))
    to.run_epoch(network)
    assert network.published == [4, 8, 12, 16, 20]
