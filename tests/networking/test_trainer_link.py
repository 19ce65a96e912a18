"""What the trainer takes of what arrives, without a server."""

import numpy as np
import pytest

from tmrl_like.networking.trainer_link import TrainerLink
from tmrl_like.testing.fakes import CountingEnv, LinearActor
from tmrl_like.types import StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import PacketWriter
from tmrl_like.wire.policy import PolicyAssembler


class DeadLink:
    """A connection on which nothing arrives."""

    def send(self, data):
        return True

    def receive(self, timeout_s):
        return None

    def wake(self):
        pass

    def close(self):
        pass


@pytest.fixture
def make_link():
    links = []

    def make(**options):
        links.append(TrainerLink(DeadLink(), "nowhere", "t", m.Spaces("o", "a"), **options))
        links[-1]._session.close(0.0)
        return links[-1]

    yield make
    for link in links:
        link.close()


@pytest.fixture
def link(make_link):
    return make_link()


def give(link, sequence, oldest=1, gap=0, session=7):
    import zlib

    writer = PacketWriter()
    writer.append((None, np.float32(sequence), 0.0, False, False, {}), StepTiming(1e9, 0.0, 0.0, 1))
    body = writer.encode()
    header = m.SamplePacket("w", session, sequence, 1, 1, len(body), zlib.crc32(body), False, 0, oldest, gap)
    link.on_message(header, memoryview(body))


def taken(link):
    """(number, name of the stream) of what would reach the memory."""
    return [(int(d.buffer.memory[0].obs), d.buffer.stream) for d in link._arriving]


def test_packets_after_one_that_is_missing_have_to_wait_for_it(link):
    for sequence in (1, 3, 4):
        give(link, sequence)
    assert [number for number, _ in taken(link)] == [1]
    assert link._acks[("w", 7)] is True


def test_a_gap_of_packets_that_come_no_more_is_a_break(link, caplog):
    give(link, 1)
    give(link, 4, gap=2)
    give(link, 5)
    assert taken(link) == [(1, "w/7/1/0"), (4, "w/7/1/1"), (5, "w/7/1/1")]
    assert "packets 2 to 3 of worker w are lost for good" in caplog.text


def test_what_comes_before_a_gap_is_waited_for(link):
    give(link, 1)
    give(link, 5, gap=2)  # 2 is on its way, 3 and 4 are not
    assert [number for number, _ in taken(link)] == [1]
    give(link, 2)
    give(link, 5, gap=2)
    assert taken(link) == [(1, "w/7/1/0"), (2, "w/7/1/0"), (5, "w/7/1/1")]


def test_a_gap_whose_packets_arrived_before_they_were_lost_is_none(link):
    for sequence in (1, 2, 3):
        give(link, sequence)
    give(link, 4, gap=2)
    assert taken(link)[-1] == (4, "w/7/1/0")


def test_a_packet_that_comes_again_is_acknowledged_and_not_taken(link):
    for sequence in (1, 2, 1, 2):
        give(link, sequence)
    assert [number for number, _ in taken(link)] == [1, 2]
    assert ("w", 7) in link._acks


def tick(link):
    """What one turn of the connection's thread sends."""
    sent = []
    link.on_tick(lambda data: sent.append(m.decode(data)[0]) or True, connected=True)
    return sent


def numbers(deliveries):
    return [(d.receipt.session, d.receipt.sequence) for d in deliveries]


def test_of_a_refused_worker_process_nothing_more_is_taken_or_acknowledged(link, caplog):
    for sequence in (1, 2, 3):
        give(link, sequence)
    tick(link)
    first, second, _ = link.retrieve()
    link.confirm([first], stored=True)
    give(link, 4)  # it has arrived, and is not in the training thread's hands
    link.refuse(second.receipt, "obs is float64,\nit was float32")
    sent = tick(link)
    assert m.Dismissal("w", 7, "obs is float64, it was float32") in sent
    assert [(a.stored, a.received) for a in sent if isinstance(a, m.Ack)] == [(1, 1)]
    give(link, 5)
    assert link.retrieve() == []
    assert not any(isinstance(message, m.Ack) for message in tick(link))
    assert link.bookkeeping()["processes"] == [["w", 7, 1, 0, 0]]
    assert link.fleet()["refused_workers_total"] == 1
    assert len([r for r in caplog.records if "samples of worker w are refused, training goes on" in r.message]) == 1


def test_a_refused_worker_process_that_goes_on_sending_is_refused_again_but_not_for_each_packet(link, monkeypatch):
    give(link, 1)
    tick(link)
    link.refuse(link.retrieve()[0].receipt, "no")
    tick(link)
    for sequence in (1, 2, 3):
        give(link, sequence)
    assert tick(link) == [m.Dismissal("w", 7, "no")]
    give(link, 4)
    assert tick(link) == []
    monkeypatch.setattr("tmrl_like.networking.trainer_link._ASK_AGAIN_S", -1.0)
    give(link, 4)
    assert tick(link) == [m.Dismissal("w", 7, "no")]


def test_a_refusal_that_could_not_be_sent_is_sent_later(link):
    give(link, 1)
    tick(link)
    link.refuse(link.retrieve()[0].receipt, "no")
    link.on_tick(lambda data: False, connected=True)
    assert link.pending()
    assert m.Dismissal("w", 7, "no") in tick(link)
    assert not link.pending()


def test_the_next_process_of_a_refused_worker_is_taken(link):
    give(link, 1)
    tick(link)
    link.refuse(link.retrieve()[0].receipt, "no")
    give(link, 2)
    give(link, 1, session=8)
    tick(link)
    assert numbers(link.retrieve()) == [(8, 1)]


def test_a_trainer_that_goes_on_acknowledges_what_the_one_before_stored_and_takes_none_of_it(make_link):
    first = make_link(has_checkpoints=True)
    for sequence in (1, 2, 3, 4):
        give(first, sequence)
    tick(first)
    first.confirm(first.retrieve()[:3])
    first.broadcast_model(policy(1.0))
    second = make_link(has_checkpoints=True, bookkeeping=first.bookkeeping())
    assert tick(second) == [m.Ack("w", 7, stored=3, received=3)]
    for sequence in (3, 4, 5):
        give(second, sequence)
    tick(second)
    assert numbers(second.retrieve()) == [(7, 4), (7, 5)]
    assert second.newest_version == 1
    assert second.broadcast_model(policy(2.0)) == 2


def policy(bias):
    actor = LinearActor(CountingEnv().observation_space, CountingEnv().action_space)
    actor.layer.bias.data.fill_(bias)
    return actor


def received(messages):
    """(version, bias) of each whole policy among raw messages."""
    assembler, found = PolicyAssembler(), []
    for message in messages:
        frame, body = m.decode(message)
        if isinstance(frame, m.PolicyFrame) and (weights := assembler.add(frame, body)) is not None:
            actor = policy(0.0)
            actor.load_weights(weights)
            found.append((frame.version, actor.layer.bias.item()))
    return found


def test_of_the_policies_that_wait_the_newest_is_sent_once(link):
    for bias in (1.0, 2.0, 3.0):
        link.broadcast_model(policy(bias))
    sent = []
    for _ in range(3):
        link.on_tick(lambda data: sent.append(data) or True, connected=True)
    assert received(sent) == [(3, 3.0)]
    assert not link.pending()


def test_what_is_published_does_not_change_with_the_network_in_training(link):
    actor, sent = policy(1.0), []
    link.broadcast_model(actor)
    actor.layer.bias.data.fill_(2.0)
    link.on_tick(lambda data: sent.append(data) or True, connected=True)
    assert received(sent) == [(1, 1.0)]


def test_a_policy_that_the_connection_does_not_take_at_once_arrives_whole_and_soon(link, monkeypatch):
    monkeypatch.setattr("tmrl_like.wire.policy.FRAME_BYTES", 16)
    link.broadcast_model(policy(1.0))
    sent, delays = [], []

    def send(data):
        if len(sent) == 3 * (len(delays) + 1):
            return False
        sent.append(data)
        return True

    while link.pending():
        delays.append(link.on_tick(send, connected=True))
    assert len(delays) > 3
    assert received(sent) == [(1, 1.0)]
    assert max(delays[:-1]) < delays[-1]


def test_the_newest_policy_that_was_sent_is_on_disk(make_link, tmp_path):
    link = make_link(model_path=tmp_path / "policy")
    for bias in (1.0, 2.0):
        link.broadcast_model(policy(bias))
        tick(link)
    link.close()
    assert policy(0.0).load(tmp_path / "policy").layer.bias.item() == 2.0


def test_a_server_without_a_policy_gets_the_last_one_again(link):
    sent = []
    for welcome in (m.Welcome(1, policy_wanted=True), m.Welcome(2), m.Welcome(3, policy_wanted=True)):
        link.on_welcome(welcome, True)
        link.on_tick(lambda data: sent.append(data) or True, connected=True)
        if not sent:
            link.broadcast_model(policy(1.0))
    assert received(sent) == [(1, 1.0), (1, 1.0)]
