"""What training does with a packet that does not fit the memory, without a network."""

import numpy as np
import pytest
import torch

from tmrl_like.errors import ConfigError, MemoryContractError, PipelineMismatchError
from tmrl_like.memories import Prioritised, ReplayMemory
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


class Finite(Network):
    """Hands over one packet at a time; nobody may wait for more when there are none left."""

    def retrieve(self, timeout_s=0.0):
        assert self.deliveries, "waits for samples that do not come"
        return [self.deliveries.pop(0)]


def test_no_step_goes_above_the_ratio_and_the_last_one_of_a_round_waits_for_nothing():
    ahead = []

    class Agent(CountingAgent):
        def train(self, batch):
            ahead.append(to.total_updates + 1 - to.total_samples)
            return super().train(batch)

    memory_cls = partial(ReplayMemory, batch_size=4)
    to = TrainingOffline(CountingEnv, memory_cls, Agent, rounds=2, steps=4, max_training_steps_per_env_step=1.0)
    to.run_epoch(Finite(*(packet("a", number) for number in (1, 2, 3))))
    assert ahead == [-2, -1, 0, -2, -1, 0, -2, -1]


def test_the_errors_that_a_memory_draws_by_go_to_the_memory_and_not_to_the_metrics():
    fed = []

    class Memory(ReplayMemory):
        def feed_back(self, drawn, td_error):
            fed.append((len(drawn), td_error))
            super().feed_back(drawn, td_error)

    class Agent(CountingAgent):
        def train(self, batch):
            return super().train(batch) | {"td_error": torch.full((4,), float(self.steps))}

    memory_cls = partial(Memory, batch_size=4, prioritised=Prioritised())
    to = TrainingOffline(CountingEnv, memory_cls, Agent, rounds=1, steps=2)
    (record,) = to.run_epoch(Network(packet("a", 1)))
    assert [(n, td_error.tolist()) for n, td_error in fed] == [(4, [1.0] * 4), (4, [2.0] * 4)]
    assert "td_error" not in record
    assert record["loss"] == 1.5
    to = TrainingOffline(CountingEnv, memory_cls, CountingAgent)
    with pytest.raises(ConfigError, match=r"Memory draws by TD errors, but CountingAgent.train returns no td_error"):
        to.run_epoch(Network(packet("a", 1)))


class WithGamma(CountingAgent):
    gamma = 0.9


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"env_cls": None}, "TrainingOffline needs env_cls"),
        ({"memory_cls": None}, "TrainingOffline needs memory_cls"),
        ({"steps": 0}, "TrainingOffline.steps is 0; it must be 1 or more"),
        ({"update_buffer_interval": 0}, "TrainingOffline.update_buffer_interval is 0; it must be 1 or more"),
        ({"env_cls": (1, 2, 3)}, "env_cls as a tuple is .* it has 3 items"),
        ({"memory_cls": partial(ReplayMemory, gamma=0.5)}, "gamma is 0.5 in the memory and 0.9 in the agent"),
    ],
)
def test_fields_that_cannot_be_are_named(fields, told):
    usual = {"env_cls": CountingEnv, "memory_cls": ReplayMemory, "training_agent_cls": WithGamma}
    with pytest.raises(ConfigError, match=told):
        TrainingOffline(**usual | fields)


def test_memory_and_agent_get_the_schedules_device_and_length_and_the_environment_is_closed():
    closed = []

    class Env(CountingEnv):
        def close(self):
            closed.append(True)

    to = TrainingOffline(Env, ReplayMemory, CountingAgent, steps=7, device="meta")
    assert (to.memory.device, to.agent.device) == ("meta", "meta")
    assert to.memory.nb_steps == 7
    assert closed == [True]
    assert to.agent.observation_space == CountingEnv().observation_space
