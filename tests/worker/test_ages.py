"""Messages of a worker about the age of its samples and about its clock."""

import time
from types import SimpleNamespace

import pytest
from delivery.both_ends import Ends
from house import alone
from kit.samples import appended_by

from tmrl_like.base import clocks
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition
from tmrl_like.worker.link import WorkerRole

NO_GATE = SimpleNamespace(verdicts=SimpleNamespace(alarm=""))


def test_a_beat_goes_first_and_packets_say_by_whose_clock(tmp_path):
    """The beat says what the loop measured, and what the link knows."""
    dead = Ends(tmp_path, incarnation=1)
    dead.fill(1)
    dead.kill()
    ends = Ends(tmp_path, incarnation=2)
    ends.kill_reader()
    ends.fill(2)
    ends.outbox = ends.reader(epoch_s=1.6e9)
    ends.hasten()
    sent, condition = [], Condition(policy_age_s=10.0, alarm="hot")
    role = WorkerRole(ends.outbox, NO_GATE, None, condition, print)
    role.on_welcome(m.Welcome(7), is_new=True)
    role.on_tick(lambda data: sent.append(m.decode(data)[0]) or True, connected=True)
    beat, *packets = sent
    assert beat.condition == Condition(policy_age_s=10.0, alarm="hot", unacknowledged_samples=2)
    assert 0.0 <= clocks.up_s() - beat.up_s < 60.0
    assert abs(time.time() - beat.at_s) < 60.0
    assert {packet.incarnation: packet.epoch_s for packet in packets} == {1: 0.0, 2: 1.6e9}
    ends.close()


@pytest.mark.parametrize("is_read", [False, True])
def test_a_policy_is_as_old_as_it_has_been_here(is_read, monkeypatch, tmp_path):
    with alone() as worker:
        worker.actor.save(tmp_path / "policy")
        monkeypatch.setattr("time.perf_counter", lambda: 1000.0)
        assert worker.condition().policy_age_s == 0.0
        if is_read:
            worker.loop.driver.load_file(tmp_path / "policy")
        else:
            worker.use_weights(worker.actor.weights(), 1)
        monkeypatch.setattr("time.perf_counter", lambda: 1010.0)
        assert worker.condition().policy_age_s == 10.0


def test_the_times_of_samples_do_not_jump_with_the_clock(monkeypatch):
    now_s = time.time()
    with alone() as worker:
        appended = appended_by(worker)
        obs = worker.loop.reset(collect_samples=True)
        monkeypatch.setattr(time, "time", lambda: now_s - 3600.0)
        worker.loop.step(obs, test=False, collect_samples=True)
    (_, before, *_), (_, after, *_) = appended
    assert abs(before - now_s) < 600.0
    assert 0.0 <= after - before < 60.0
