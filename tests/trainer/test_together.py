"""What several trainers decide and keep together; the ranks are threads."""

import itertools
import time

import pytest
import torch
from in_threads import LateRanks, ThreadRanks, all_at_once
from test_checkpoints import message
from test_schedule import Hears, Network, packet

from tmrl_like.base.functional import partial
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.errors import CheckpointError, ConfigError
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, ListMemory
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.types import Receipt
from tmrl_like.wire import messages as m

SPACES = CountingEnv().observation_space, CountingEnv().action_space


def after(seconds):
    until = time.monotonic() + seconds
    return lambda: time.monotonic() > until


def training(cls=TrainingOffline, **options):
    fields = {"epochs": 1, "rounds": 2, "steps": 10, "sleep_between_buffer_retrieval_attempts": 0.01} | options
    return cls(env_cls=SPACES, memory_cls=partial(ListMemory, batch_size=2), training_agent_cls=CountingAgent, **fields)


RANKS = pytest.mark.parametrize("kind", [ThreadRanks, LateRanks])


class Later(Network):
    """Deliveries that come one by one, each when it is looked for."""

    def __init__(self, *deliveries):
        super().__init__()
        self.later = list(deliveries)
        self.trained = []

    def retrieve(self, timeout_s=0.0):
        return [self.later.pop(0)] if self.later and timeout_s else []

    def note_trained(self, receipt):
        self.trained.append(receipt.entry)


def run(ranks, networks, make=training, **options):
    """Each rank trains an epoch on what its network has; the trainings."""

    def train(rank):
        one, heard = make(**options), Hears()
        one.join(rank)
        one.run_epoch(networks[rank.rank], [heard])
        one.records = heard.records
        return one

    return all_at_once(ranks, train)


@RANKS
def test_all_train_as_many_steps_as_the_samples_of_all_allow(kind):
    networks = [Later(packet("v", 1), packet("v", 2)), Later(*[packet("w", k) for k in range(1, 6)])]
    trainings = run(kind.of(2), networks, max_training_steps_per_env_step=1.0)
    assert [(t.total_updates, t.total_samples) for t in trainings] == [(20, 21)] * 2


class Hasty(TrainingOffline):
    """Its clock runs two hundred times as fast."""

    def clock(self):
        return 200 * time.monotonic()


def test_no_rank_trains_before_all_have_samples_and_the_one_without_says_so(caplog):
    networks = [Later(*[packet("v", k) for k in range(1, 100)]), Later()]
    one, two = ThreadRanks.of(2)

    def train(rank):
        made = training(Hasty, max_training_steps_per_env_step=9.0)
        made.join(rank)
        made.run_epoch(networks[rank.rank], should_stop=after(0.3))
        return made

    assert [t.total_updates for t in all_at_once([one, two], train)] == [0, 0]
    assert "rank 1" in {record.threadName for record in caplog.records if "nobody has come" in record.message}


@RANKS
@pytest.mark.parametrize("which", [0, 1])
def test_when_one_is_to_stop_all_do_after_the_same_step(which, kind):
    def train(rank):
        made = training(max_training_steps_per_env_step=1000.0, steps=1000)
        made.join(rank)
        network = Network(packet("v" if rank.rank else "w", 1), packet("v", 2))
        made.run_epoch(network, should_stop=lambda: rank.rank == which and made.total_updates >= 57)
        return made.total_updates

    assert all_at_once(kind.of(2), train) == [57 if kind is ThreadRanks else 58] * 2


def test_rank_0_shows_the_rounds_and_episodes_of_all():
    networks = [Network(packet("v", 1), packet("v", 2)), Network(packet("w", 1))]
    zero, _ = run(ThreadRanks.of(2), networks, rounds=1, steps=5)
    assert {r["worker"] for r in zero.records if r["kind"] == "episode"} == {"v", "w"}
    (record,) = [r for r in zero.records if r["kind"] == "round"]
    assert record["episodes_train"] == 3
    assert record["memory_transitions"] == 5 + 2


class Together:
    """Several trainers without a network: trainings, logs and one checkpoint."""

    def __init__(self, path, size, resume="all", **options):
        made = partial(TrainingOffline, SPACES, partial(ListMemory, batch_size=2, memory_size=1000), CountingAgent)

        def build(rank):
            torch.manual_seed(rank.rank)
            kept = Checkpoints(path, ranks=rank, **options)
            one = kept.build(made, resume)
            kept.gather_receipts(m.share_of)
            return kept, one

        self.results = all_at_once(ThreadRanks.of(size), build)
        if all(isinstance(result, tuple) for result in self.results):
            self.checkpoints, self.trainings = zip(*self.results, strict=True)

    def take(self, rank, worker, *numbers):
        """Packets come to a rank, where others have stored what is before the first of them, and are stored."""
        self.checkpoints[rank].receiver.note_stored([Receipt(worker, 1, 10 * (numbers[0] - 1))])
        self.send(rank, worker, *numbers)

    def send(self, rank, worker, *numbers):
        receiver, one = self.checkpoints[rank].receiver, self.trainings[rank]
        for number in numbers:
            for delivery in taken(receiver, message(number, worker)):
                one.memory.append(delivery.buffer)
                receiver.confirm([delivery.receipt])
                for each in self.trainings:
                    each.total_samples += len(delivery.buffer)
        receiver.write(0.0)

    def save(self):
        for kept, one in zip(self.checkpoints, self.trainings, strict=True):
            kept.save(one, 3, wait=True)

    def close(self):
        for kept in self.checkpoints:
            kept.close()

    @property
    def rewards(self):
        """What the memories hold, by rank: the rewards count up."""
        for one in self.trainings:
            one.memory.flush()
        return [sorted(sample.rew for sample in one.memory.data) for one in self.trainings]


def taken(receiver, data):
    packet, body = m.decode(data)
    return receiver.take(packet, body, data, 0.0, lambda packet: True)


def rewards(*numbers):
    return [10.0 * (number - 1) + k for number in numbers for k in range(10)]


@pytest.fixture
def place(tmp_path):
    return tmp_path / "training"


def test_each_rank_has_its_samples_again_and_all_what_rank_0_has_learnt(place):
    group = Together(place, 2)
    group.trainings[0].agent.steps = 5
    group.trainings[0].total_updates = 5
    group.take(0, "v", 1, 2)
    group.take(1, "w", 3)
    group.save()
    group.take(1, "w", 4)
    group.close()
    group = Together(place, 2)
    assert group.rewards == [rewards(1, 2), rewards(3, 4)]
    assert [(t.agent.steps, t.total_updates, t.total_samples) for t in group.trainings] == [(5, 5, 40)] * 2
    assert [t.kept.version for t in group.trainings] == [3, 3]
    group.close()


def test_ranks_begin_alike_and_draw_differently(place):
    group = Together(place, 2)
    zero, one = group.trainings
    for name, value in zero.agent.actor.state_dict().items():
        assert torch.equal(value, one.agent.actor.state_dict()[name])
    assert zero.memory.rng.integers(1 << 60) != one.memory.rng.integers(1 << 60)
    group.close()


@pytest.mark.parametrize("sizes", [(2, 3, 1, 4, 2), (1, 3, 2, 3, 1)])
def test_groups_of_any_size_take_each_packet_once_however_often_it_comes(place, sizes):
    workers = [f"worker-{number}" for number in range(1, 6)]
    for number, size in enumerate(sizes):
        group = Together(place, size)
        assert sorted(itertools.chain(*group.rewards)) == sorted(rewards(*range(1, 1 + 2 * number)) * len(workers))
        assert {one.total_samples for one in group.trainings} == {20 * number * len(workers)}
        for worker in workers:
            group.send(m.share_of(worker, size), worker, *range(1, 3 + 2 * number))
        group.close()


def test_a_rank_that_is_no_more_and_still_lives_keeps_the_others_from_starting(place):
    group = Together(place, 3)
    for rank in (0, 1):
        group.checkpoints[rank].close()
    errors = [result for result in Together(place, 2, lock_within_s=0.1).results if isinstance(result, CheckpointError)]
    assert "is in use by another trainer" in str(errors[0])
    group.close()


def test_starting_over_removes_the_samples_of_all_ranks(place):
    group = Together(place, 3)
    group.take(2, "w", 1)
    group.save()
    group.close()
    group = Together(place, 2, resume="none")
    assert group.rewards == [[], []]
    group.close()
    group = Together(place, 3)
    assert group.rewards == [[], [], []]
    group.close()


def test_samples_of_different_trainings_are_not_joined(place):
    for folder in (place, place.with_name("other")):
        group = Together(folder, 2)
        group.take(0, "w", 1)
        group.take(1, "v", 1)
        group.save()
        group.close()
    (place.with_name("other") / "rank-1").rename(place / "rank-2")
    (place / "rank-1").rename(place.with_name("away"))
    (place / "rank-2").rename(place / "rank-1")
    errors = [result for result in Together(place, 2).results if isinstance(result, CheckpointError)]
    assert "samples of several trainings" in str(errors[0])


def test_several_trainers_take_no_format_of_the_users():
    with pytest.raises(ConfigError, match="several trainers keep checkpoints in our own format"):
        Checkpoints(None, dump=lambda training, path: None, ranks=ThreadRanks.of(2)[0])


@RANKS
def test_in_lockstep_the_tasks_of_all_are_done_by_all(kind):
    def train(rank):
        made = training(max_training_steps_per_env_step=1.0, steps=1000)
        made.join(rank)
        receiver, deliveries = Receiver(), []
        for number in (1, 2, 3):
            deliveries += taken(receiver, message(number, f"w{rank.rank}", awaits=rank.rank == 0))
        network = Later(*deliveries)
        made.run_epoch(network, should_stop=after(1.0))
        return made.total_updates, made.pacer.tasked_steps, network.trained

    (steps, tasks, awaited), (others_steps, others_tasks, trained) = all_at_once(kind.of(2), train)
    assert steps == tasks == others_steps == others_tasks >= 40
    assert (awaited, trained) == ([10, 20, 30], [])


@pytest.mark.parametrize("size", [1, 2])
def test_trainers_without_samples_do_not_spin(size):
    class Empty(Network):
        def retrieve(self, timeout_s=0.0):
            waits.append(timeout_s)
            time.sleep(timeout_s)
            return []

    def train(rank):
        made = training(sleep_between_buffer_retrieval_attempts=0.1)
        made.join(rank)
        made.run_epoch(Empty(), should_stop=after(0.3))

    waits = []
    all_at_once(ThreadRanks.of(size), train)
    assert set(waits) == {0.1 if size == 1 else 0.02}
    assert len(waits) <= (4 if size == 1 else 2 * 16)
