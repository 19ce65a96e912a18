"""The relay's assignment of workers, by name, to several trainers that learn as one, without
threads or sockets.
"""

from kit.relays import frame

from tmrl_like.wire import messages as m


def rank(scene, number, size=2):
    """Return the trainer of a rank of a group."""
    return scene.trainer(f"t{number}", 100 + number, rank=m.Rank(number, size, 7))


def worker_of(scene, number, size=2):
    """Return a worker that belongs to a rank."""
    names = (f"w{n}" for n in range(size))
    return scene.worker(next(name for name in names if m.share_of(name, size) == number), number)


def test_a_share_is_the_same_in_every_process_and_version():
    names = ("worker-1", "worker-18", "arm", "9" * m.MAX_NAME, "")
    assert [m.share_of(name, 16) for name in names] == [8, 9, 15, 1, 2]


def test_without_its_rank_a_worker_keeps_its_samples_and_the_others_go_on(scene):
    first, second = rank(scene, 0), rank(scene, 1)
    worker, other = worker_of(scene, 0), worker_of(scene, 1)
    before, before_other = worker.feed, other.feed
    first.say(m.Bye())
    assert worker.feed == 0
    for peer in (worker, other):
        peer.send(1)
    assert second.entries == [1]
    successor = rank(scene, 0)
    assert worker.feed not in (0, before), "it sends again what is not stored"
    assert other.feed == before_other
    for peer in (worker, other):
        peer.send(2)
    assert (successor.entries, second.entries) == ([2], [1, 2])


def test_a_worker_is_heard_by_rank_0_and_its_own_rank_and_hears_its_own_alone(scene):
    ranks = [rank(scene, number, 3) for number in range(3)]
    worker = worker_of(scene, 1, 3)
    worker.say(m.Beat(worker=worker.name))
    assert [len(trainer.heard(m.Beat)) for trainer in ranks] == [1, 1, 0]
    for number, trainer in enumerate(ranks):
        trainer.say(m.Ack(worker.name, 1, number, number))
    assert worker.heard(m.Ack) == [m.Ack(worker.name, 1, 1, 1)]


def test_only_rank_0_publishes(scene):
    first, second, worker = rank(scene, 0), rank(scene, 1), scene.worker()
    first.say(frame())
    assert "rank 0 publishes" in second.say(frame(2)).refusal.reason
    assert worker.policies == [1]


def test_a_group_that_goes_on_with_the_run_takes_all_seats_at_once(scene):
    first, second, *successors = (
        scene.trainer(f"t{began_up_s}", began_up_s, rank=rank, run="5eed", began_up_s=began_up_s)
        for began_up_s, rank in enumerate(
            (m.Rank(0, 2, 7), m.Rank(1, 2, 7), m.Rank(1, 2, 8), m.Rank(0, 2, 8)), start=100
        )
    )
    assert scene.ranks == dict(enumerate(reversed(successors)))
    assert all(peer.refusal.retry_after_s < 0 for peer in (first, second))
