"""Messages of a worker about the age of its samples and about its clock."""

import time
from types import SimpleNamespace

import pytest
from delivery.both_ends import Ends
from house import alone

from tmrl_like.base import clocks
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition
from tmrl_like.worker.link import WorkerRole

NO_GATE = SimpleNamespace(verdicts=SimpleNamespace(alarm=""))


def said(outbox, condition=None):
    """Return the messages that a link sends when a trainer arrives."""
    role = WorkerRole(outbox, NO_GATE, None, None, condition or Condition(), lambda message: None)
    role.on_welcome(m.Welcome(7), is_new=True)
    sent = []
    role.on_tick(lambda data: sent.append(m.decode(data)[0]) or True, connected=True)
    return sent


def test_a_beat_goes_first_and_packets_say_by_whose_clock(tmp_path):
    dead = Ends(tmp_path, incarnation=1)
    dead.fill(1)
    dead.kill()
    ends = Ends(tmp_path, incarnation=2)
    ends.kill_reader()
    ends.fill(2)
    ends.outbox = ends.reader(epoch_s=1.6e9)
    ends.hasten()
    beat, *packets = said(ends.outbox)
    assert isinstance(beat, m.Beat)
    assert 0.0 <= clocks.up_s() - beat.up_s < 60.0
    assert abs(time.time() - beat.at_s) < 60.0
    assert {packet.incarnation: packet.epoch_s for packet in packets} == {1: 0.0, 2: 1.6e9}
    ends.close()


def test_a_beat_says_what_the_loop_measured_and_what_the_link_knows(tmp_path):
    ends = Ends(tmp_path)
    ends.fill(1)
    condition = said(ends.outbox, Condition(policy_age_s=10.0, alarm="hot"))[0].condition
    assert condition == Condition(policy_age_s=10.0, alarm="hot", unacknowledged_samples=1)
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


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_the_times_of_samples_do_not_jump_with_the_clock(monkeypatch, jump_s):
    real = time.time
    with alone() as worker:
        times = []
        worker.loop.samples = SimpleNamespace(append=lambda sample, at_s, *rest: times.append(at_s))
        obs, _ = worker.loop.reset(collect_samples=True)
        monkeypatch.setattr(time, "time", lambda: real() + jump_s)
        worker.loop.step(obs, test=False, collect_samples=True)
        worker.loop.samples = None
    assert len(times) == 2
    assert 0.0 <= times[1] - times[0] < 60.0
    assert abs(times[0] - real()) < 600.0
