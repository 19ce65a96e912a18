"""The trainer's connection: workers take turns, and samples left in one turn are read in the
next.
"""

import numpy as np
import pytest
from house import linear_actor
from kit.clocks import Clock
from kit.executors import Beside
from kit.links import DeadLink
from kit.packets import numbered, packet_of
from kit.waiting import until

from tmrl_like.base import clocks
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.errors import DivergedError
from tmrl_like.policies.policy_file import describe
from tmrl_like.policies.policy_store import PolicyStore
from tmrl_like.policies.weight_file import Weights, size_of
from tmrl_like.trainer import trainer_link
from tmrl_like.trainer.options import TrainerOptions
from tmrl_like.trainer.sample_ages import FreshnessLimits
from tmrl_like.trainer.saver import Saver
from tmrl_like.trainer.trainer_link import TrainerLink
from tmrl_like.wire import messages as m
from tmrl_like.wire.policy import PolicyAssembler


@pytest.fixture
def make_link(monkeypatch):
    """Return a function that makes a link whose session has ended, so that the test makes its
    turns.
    """

    monkeypatch.setattr(trainer_link, "TURN_S", 1.0)

    def make(**options):
        link = TrainerLink(DeadLink(), "t", m.Spaces("o", "a"), **options)
        link.close(0.0)
        return link

    return make


@pytest.fixture
def link(make_link):
    return make_link()


def tick(link):
    """Let a link send what it has to send; return the messages."""
    sent = []
    link.on_tick(lambda data: sent.append(data) or True, connected=True)
    return sent


def give(link, entry, worker, epoch_s=0.0):
    data = packet_of(entry, numbered(entry), worker=worker, epoch_s=epoch_s)
    link.on_message(*m.decode(data), data)


def test_a_trainer_says_which_run_it_goes_on_with_and_how_many_samples_that_had(monkeypatch):
    said, receiver = [], Receiver(run="5eed")
    receiver.began_with = 30
    monkeypatch.setattr(DeadLink, "send", lambda link, data: said.append(data) or True)
    link = TrainerLink(DeadLink(), "t", m.Spaces("o", "a"), receiver=receiver)
    until(lambda: said)
    link.close(0.0)
    hello, _ = m.decode(said[0])
    assert (hello.run, hello.samples) == ("5eed", 30)


def test_what_is_left_of_a_turn_is_read_in_the_next_and_the_least_expensive_worker_comes_first(
    make_link, monkeypatch
):
    clock, take = Clock(), Receiver.take

    def slowly(receiver, packet, *arguments):
        for delivery in take(receiver, packet, *arguments):
            clock.now += 0.9 if packet.worker == "bad" else 0.001
            yield delivery

    monkeypatch.setattr(Receiver, "take", slowly)
    link = make_link(clock=clock)
    for entry in range(1, 31):
        give(link, entry, "bad")
    for entry in range(1, 11):
        give(link, entry, "w")
    tick(link)
    workers = [d.receipt.worker for d in link.retrieve()]
    assert workers.count("w") == 10
    assert workers.count("bad") <= 4
    for _ in range(30):
        tick(link)
    assert [d.receipt.entry for d in link.retrieve()] == list(range(workers.count("bad") + 1, 31))


def received(messages):
    """Return (version, bias) of each complete policy among raw messages."""
    assembler = PolicyAssembler(lambda manifest: memoryview(bytearray(size_of(manifest))))
    found, manifest = [], linear_actor().manifest()
    for frame, body in map(m.decode, messages):
        if isinstance(frame, m.PolicyFrame) and (data := assembler.add(frame, body)) is not None:
            bias = Weights(manifest, data).arrays()["layer.bias"]
            found.append((frame.version, bias.item()))
    return found


def test_a_policy_keeps_its_weights_while_it_is_sent_and_of_those_that_wait_the_newest_follows(
    make_link, monkeypatch
):
    monkeypatch.setattr("tmrl_like.wire.policy.FRAME_BYTES", 1)
    link, actor = make_link(version=40), linear_actor(bias=0.0)
    sent, publishing = [], iter((2.0, 3.0, 4.0))

    def publish(bias):
        actor.layer.bias.data.fill_(bias)
        assert link.broadcast_model(actor) == link.newest_version

    def send(data):
        if len(sent) == 2 and (bias := next(publishing, None)):
            publish(bias)
            return False
        sent.append(data)
        return True

    publish(1.0)
    delays_s = []
    while link.pending():
        delays_s.append(link.on_tick(send, connected=True))
    assert received(sent) == [(41, 1.0), (44, 4.0)]
    assert delays_s[0] < 0.1 * delays_s[-1]  # a refused message is soon tried again
    for bias in (5.0, np.nan):
        sent += tick(link)
        publish(bias)
    sent += tick(link)
    assert received(sent)[-1] == (45, 5.0)
    with pytest.raises(DivergedError):
        link.retrieve()


def test_a_policy_keeps_its_weights_while_it_is_saved(make_link, tmp_path, monkeypatch):
    monkeypatch.setattr("tmrl_like.trainer.saver.thread_beside", lambda name: Beside())
    store, card = PolicyStore(tmp_path), describe(linear_actor())
    saver = Saver(None, store, card, TrainerOptions(), lambda: 0)
    link, biases = make_link(saver=saver), [1.0, 2.0, 3.0, 4.0]
    for bias in biases:
        link.broadcast_model(linear_actor(bias=bias))
        tick(link)
    saver.close()
    saved = [linear_actor().load(store.path(version)) for version in store.versions()]
    assert [actor.layer.bias.item() for actor in saved] == biases


def test_what_is_missing_before_anything_came_is_the_server_and_every_worker(make_link):
    expected = "there is no connection to the server at nowhere; before that: "
    assert make_link().who_is_missing() == expected + "no worker has come"
    own = (
        "rank 1 gets only workers whose names assign them to it: start at least 3, with names "
        "that end"
    )
    assert make_link(rank=m.Rank(1, 3, 7)).who_is_missing().startswith(expected + own)


def test_records_go_to_the_server_and_what_the_connection_does_not_take_is_not_sent_again(link):
    for number in range(600):
        link.report({"kind": "round", "loss": float("nan"), "round": number})
    link.on_tick(lambda data: False, connected=False)
    sent = tick(link)
    assert len(sent) == 500
    assert m.decode(sent[-1]) == (m.Report(), b'{"kind":"round","loss":null,"round":599}')
    link.report({"kind": "round"})
    link.on_tick(lambda data: False, connected=True)
    assert tick(link) == []


@pytest.mark.parametrize(
    ("is_wanted", "is_new", "is_sent"),
    [
        (True, False, True),
        (False, True, True),  # the server may hold an older policy
        (False, False, False),
    ],
)
def test_a_policy_that_the_server_may_lack_is_sent_again(link, is_wanted, is_new, is_sent):
    welcome = m.Welcome(1, policy_wanted=is_wanted)
    link.on_welcome(welcome, is_new)
    assert not tick(link)
    link.broadcast_model(linear_actor(bias=1.0))
    tick(link)
    link.on_welcome(welcome, is_new)
    assert received(tick(link)) == [(1, 1.0)] * is_sent


def test_a_server_that_is_replaced_while_a_policy_is_sent_gets_all_of_it(link, monkeypatch):
    monkeypatch.setattr("tmrl_like.wire.policy.FRAME_BYTES", 1)
    taken = iter((True, True, False))
    link.broadcast_model(linear_actor(bias=1.0))
    link.on_tick(lambda data: next(taken), connected=True)
    link.on_welcome(m.Welcome(2, policy_wanted=True), True)
    sent = []
    while link.pending():
        sent += tick(link)
    assert received(sent) == [(1, 1.0)]


@pytest.mark.parametrize(("age_s", "is_taken"), [(4.0, True), (6.0, False)])
def test_samples_are_as_old_as_they_are_whatever_the_clock_of_their_worker_shows(
    make_link, monkeypatch, age_s, is_taken
):
    ahead_s = -3600.0
    now = 1e9 + age_s - ahead_s  # by the trainer's clock; the sample's time is 1e9
    monkeypatch.setattr(clocks, "unix_s", lambda: now)
    link = make_link(freshness=FreshnessLimits(max_age_s=5.0), rank=m.Rank(1, 2, 7))
    link.on_message(m.Beat("w", at_s=1e9 + age_s, up_s=700.0 + age_s), memoryview(b""), b"")
    give(link, 1, "w", epoch_s=1e9 - 700.0)
    tick(link)
    (delivery,) = link.retrieve()
    assert (len(delivery.buffer), link.fleet()["dropped_stale_samples_total"]) == (
        (1, 0) if is_taken else (0, 1)
    )
    assert delivery.ahead_s == pytest.approx(ahead_s)
