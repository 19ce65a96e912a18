"""Faults that this project once had, put in again: the simulation finds each of them."""

import msgspec
import pytest
from histories import Broken, live
from simulated_faults import kill_trainer, let_clocks_jump

from tmrl_like.delivery.log import PacketLog
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.clocks import WorkerClocks
from tmrl_like.wire import messages as m

SEEDS, STEPS = 60, 600


def is_found(match, change=None):
    """Whether one of the first seeds breaks a promise."""
    with pytest.raises(Broken, match=match) as found:
        for seed in range(SEEDS):
            live(seed, STEPS, change=change)
    print(f"found in seed {seed}: {found.value}")


def test_what_is_acknowledged_before_it_is_stored_is_found(monkeypatch):
    due = Receiver.due

    def early(self):
        messages = due(self)
        newest = self._processes
        return [
            msgspec.structs.replace(ack, stored=newest[ack.worker, ack.incarnation].received)
            if isinstance(ack, m.Ack)
            else ack
            for ack in messages
        ]

    monkeypatch.setattr(Receiver, "due", early)
    is_found("lost")


def test_an_acknowledgement_across_a_hole_is_found(monkeypatch):
    take = Receiver.take

    def across(self, bundle, *args):
        return take(self, msgspec.structs.replace(bundle, previous=0), *args)

    monkeypatch.setattr(Receiver, "take", across)
    is_found("lost")


def test_connections_whose_numbers_start_again_are_found():
    def swap(world):
        """All connections break, and are there again before anybody looks, in another order."""
        connections = list(world.network.connections)
        for connection in connections:
            world.network.cut(connection)
        for connection in world.rng.sample(connections, len(connections)):
            if connection.link.may_dial:
                world.network.connect(connection.link)

    def again(world):
        world.network.numbers_again = True
        world.only(swap, 0.1)

    is_found("refused|does not settle|two ranks have", again)


def test_ages_by_clocks_as_they_are_set_now_are_found(monkeypatch):
    ahead_s = WorkerClocks.ahead_s
    monkeypatch.setattr(WorkerClocks, "ahead_s", lambda self, worker, epoch_s: ahead_s(self, worker, 0.0))
    is_found("dropped as too old", let_clocks_jump)


def kill_groups(world):
    """Trainers, each time another number of them, fall silent, and are killed with what they had to say."""

    def silence_or_kill(world):
        own = [c for c in world.network.connections if getattr(c.link, "_process", None) in world.trainers]
        if any(connection.held_until[0] > world.now for connection in own):
            kill_trainer(world)
        for connection in own:
            connection.held_until[0] = world.now + 300.0

    for training in world.trainings:
        training.sizes = (1, 2, 3)
    world.only(silence_or_kill, 0.02)


def test_what_other_ranks_have_stored_and_nobody_asks_for_is_found(monkeypatch):
    monkeypatch.setattr(Checkpoints, "gather_receipts", lambda self, rank_of: None)
    is_found("two ranks have", kill_groups)


def test_shares_by_another_size_at_the_start_are_found(monkeypatch):
    gather = Checkpoints.gather_receipts
    monkeypatch.setattr(
        Checkpoints, "gather_receipts", lambda self, rank_of: gather(self, lambda name, size: rank_of(name, size + 1))
    )
    is_found("two ranks have", kill_groups)


def test_a_log_that_is_written_out_of_order_is_found(monkeypatch):
    extend = PacketLog._extend

    def out_of_order(self, segment, data):
        """What comes second is on the disk before what comes first."""
        held = vars(self).pop("held", None)
        if held is None and segment.size_bytes and self.folder.name == "log":
            self.held = self._file, segment.size_bytes, bytes(data)
            self._file.seek(len(data), 1)
            segment.size_bytes += len(data)
            self.size_bytes += len(data)
            return
        extend(self, segment, data)
        if held is not None and not held[0].closed:
            end = held[0].tell()
            held[0].seek(held[1])
            held[0].write(held[2])
            held[0].seek(end)

    monkeypatch.setattr(PacketLog, "_extend", out_of_order)
    is_found("lost")
