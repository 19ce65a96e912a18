"""Decisions and checkpoints of several trainers together; the ranks are threads. Groups that change
their size: tests/simulation.
"""

import pytest
import torch
from in_threads import LateRanks, ThreadRanks, all_at_once, epochs_of
from kit.trainings import FREE, Network, Run, Ticking, coming, delivery, message, taken

from tmrl_like.delivery.receiver import Receiver
from tmrl_like.errors import CheckpointError, ConfigError
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.diagnosis import Diagnosis
from tmrl_like.types import Receipt

# -- training --------------------------------------------------------------------------------------

RANKS = pytest.mark.parametrize("kind", [ThreadRanks, LateRanks])


@RANKS
def test_all_train_as_many_steps_as_the_samples_of_all_allow(kind):
    networks = [coming("v", (1, 2)), coming("w", range(1, 6))]
    trainings = epochs_of(kind.of(2), networks, max_training_steps_per_env_step=1.0)
    assert [(one.total_updates, one.total_samples) for one in trainings] == [(20, 21)] * 2


def test_no_rank_trains_before_all_have_samples_and_the_one_without_says_so(caplog):
    networks = [coming("v", range(1, 100)), Network()]
    networks[1].who_is_missing = lambda: "the workers of rank 1"
    options = {"cls": Ticking, "max_training_steps_per_env_step": 9.0}
    trainings = epochs_of(ThreadRanks.of(2), networks, lambda one: one.now > 60.0, **options)
    assert [(one.total_updates, one.total_samples > 30) for one in trainings] == [(0, True)] * 2
    assert {line.partition(": ")[2] for line in caplog.messages} == {"the workers of rank 1"}


@RANKS
@pytest.mark.parametrize("which", [0, 1])
def test_when_one_is_to_stop_all_do_after_the_same_step(which, kind):
    def should_stop(one):
        return one.ranks.rank == which and one.total_updates >= 57

    trainings = epochs_of(
        kind.of(2), [coming("v", [1]), coming("w", [1])], should_stop, steps=1000, **FREE
    )
    expected = 57 if kind is ThreadRanks else 58
    assert [one.total_updates for one in trainings] == [expected] * 2


def test_rank_0_shows_the_rounds_and_episodes_of_all_and_judges_by_the_batches_of_all(monkeypatch):
    judged = []
    monkeypatch.setattr(Diagnosis, "judge", lambda self, record: judged.append(record))
    networks = [Network(delivery("v", 1), delivery("v", 2)), Network(delivery("w", 1))]
    zero, _ = epochs_of(ThreadRanks.of(2), networks, rounds=1, steps=500, **FREE)
    assert {r["worker"] for r in zero.records if r["kind"] == "episode"} == {"v", "w"}
    (record,) = [r for r in zero.records if r["kind"] == "round"]
    assert record["episodes_train"] == 3
    assert repr(record["memory_transitions"]) == repr(5 + 2)
    assert [record["batch_size"] for record in judged] == [2 * 4, 2 * 4]


def packets(worker, *numbers, awaits=True):
    """Return the deliveries of packets of ten samples."""
    receiver = Receiver()
    messages = [message(number, worker, awaits=awaits) for number in numbers]
    return [one for data in messages for one in taken(receiver, data)]


def are_idle(networks):
    return lambda one: all(network.is_idle for network in networks)


@RANKS
def test_in_lockstep_the_tasks_of_all_are_done_by_all(kind):
    networks = [
        Network(*packets("v", 1, 2, 3), one_by_one=True),
        Network(*packets("w", 1, 2, 3, awaits=False), one_by_one=True),
    ]
    options = {"max_training_steps_per_env_step": 1.0, "steps": 1000}
    trainings = epochs_of(kind.of(2), networks, are_idle(networks), **options)
    (steps, tasks), others = [(one.total_updates, one.pacer.tasked_steps) for one in trainings]
    assert (steps, tasks) == others
    assert steps == tasks >= 40
    assert [network.trained for network in networks] == [[10, 20, 30], []]


@RANKS
def test_all_enter_lockstep_after_the_same_step_if_its_worker_comes_during_training(kind):
    networks = [coming(f"free{rank}", [1, 2]) for rank in range(2)]
    late = packets("sync", 1)

    def should_stop(one):
        if one.ranks.rank == 0 and one.total_updates >= 7:
            networks[0].deliveries += late
            late.clear()
        return are_idle(networks)(one)

    options = {"max_training_steps_per_env_step": 1.0, "steps": 1000, "update_buffer_interval": 1}
    one, other = epochs_of(kind.of(2), networks, should_stop, **options)
    assert one.total_updates == other.total_updates
    assert one.pacer.state_dict() == other.pacer.state_dict()
    assert one.pacer.tasked_steps > 0
    assert networks[0].trained == [10]


# -- checkpoints -----------------------------------------------------------------------------------


def take(group, rank, worker, *numbers):
    """Have a rank receive and store packets; other ranks have stored everything before the first
    of them.
    """
    run = group[rank]
    run.receiver.note_stored([Receipt(worker, 1, 10 * (numbers[0] - 1))])
    run.take(*numbers, worker=worker)
    for each in group:
        each.training.total_samples = run.training.total_samples


def save_all(group):
    """Save the checkpoint of a group, and end it."""
    for run in group:
        run.save(version=3)
    Run.close_all()


def numbers_in(run):
    """Sorted numbers of the samples in a rank's memory."""
    run.memory.flush()
    return sorted(run.numbers)


def numbers_of(*packets):
    return [10 * (packet - 1) + k for packet in packets for k in range(10)]


@pytest.fixture
def together(tmp_path):
    """Return a function that starts a group of a given size in a folder: each rank's `Run`, or the
    error with which it could not begin.
    """

    def start(size, folder="training", **options):
        def build(rank):
            torch.manual_seed(rank.rank)
            run = Run(tmp_path / folder, ranks=rank, **options)
            run.checkpoints.gather_receipts()
            return run

        return all_at_once(ThreadRanks.of(size), build)

    yield start
    Run.close_all()


def test_each_rank_has_its_samples_again_and_all_what_rank_0_has_learnt(together):
    group = together(2)
    group[0].training.agent.steps = group[0].training.total_updates = 5
    take(group, 0, "v", 1, 2)
    take(group, 1, "w", 3)
    for run in group:
        run.save(version=3)
    take(group, 1, "w", 4)
    Run.close_all()
    group = together(2)
    assert [numbers_in(run) for run in group] == [numbers_of(1, 2), numbers_of(3, 4)]
    for run in group:
        to = run.training
        assert (to.agent.steps, *run.counts, to.kept.version) == (5, 40, 5, 3)


def test_ranks_begin_alike_and_draw_differently(together):
    zero, one = (run.training for run in together(2))
    for name, value in zero.agent.actor.state_dict().items():
        assert torch.equal(value, one.agent.actor.state_dict()[name])
    assert zero.memory.rng.integers(1 << 60) != one.memory.rng.integers(1 << 60)


def assert_refused(group, says):
    """Assert that the first rank with an error of its own is told this."""
    errors = [one for one in group if isinstance(one, CheckpointError)]
    assert says in str(errors[0])


def test_a_rank_that_is_no_more_and_still_lives_keeps_the_others_from_starting(together):
    for run in together(3)[:2]:
        run.kill()
    assert_refused(together(2, lock_within_s=0.1), "is in use by another trainer")


def test_starting_over_removes_the_samples_of_all_ranks(together):
    group = together(3)
    take(group, 2, "w", 1)
    save_all(group)
    for size, resume in ((2, "none"), (3, "all")):
        assert [numbers_in(run) for run in together(size, resume=resume)] == [[]] * size
        Run.close_all()


def test_a_group_goes_on_with_samples_that_only_another_rank_than_the_first_has(together):
    take(together(2), 1, "w", 1)
    Run.close_all()
    group = together(2)
    assert [numbers_in(run) for run in group] == [[], numbers_of(1)]
    stored = len(numbers_of(1))
    assert [run.checkpoints.receiver.began_with for run in group] == [stored, stored]


def test_samples_of_different_trainings_are_not_joined(together, tmp_path):
    for folder in ("training", "other"):
        group = together(2, folder)
        take(group, 0, "w", 1)
        take(group, 1, "v", 1)
        save_all(group)
    (tmp_path / "training" / "rank-1").rename(tmp_path / "away")
    (tmp_path / "other" / "rank-1").rename(tmp_path / "training" / "rank-1")
    assert_refused(together(2), "samples of several trainings")


def test_several_trainers_take_no_format_of_the_users():
    with pytest.raises(ConfigError, match="several trainers keep checkpoints in our own format"):
        Checkpoints(None, dump=lambda training, path: None, ranks=ThreadRanks.of(2)[0])
