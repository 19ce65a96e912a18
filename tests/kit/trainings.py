"""Trainings without a network: their deliveries, and records of their calls."""

import itertools
from typing import ClassVar

import numpy as np
from kit.fakes import CountingAgent, CountingEnv, ListMemory
from kit.packets import answers_of, packet_of

from tmrl_like.base.functional import partial
from tmrl_like.errors import MemoryContractError
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.interface import TrainerInterface
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.snapshot import load_checkpoint, take_snapshot
from tmrl_like.trainer.watch import Listener
from tmrl_like.types import Buffer, Delivery, EpisodeStats, Info, Receipt, Sample
from tmrl_like.wire import messages as m

FREE = {"max_training_steps_per_env_step": 1e9}


def training(
    memory_cls=ListMemory, cls=TrainingOffline, agent_cls=CountingAgent, batch_size=4, **fields
):
    """Return a training of two rounds of ten steps, changed by `fields`."""
    memory_cls = partial(memory_cls, batch_size=batch_size)
    return cls(CountingEnv, memory_cls, agent_cls, **{"rounds": 2, "steps": 10} | fields)


class Standing(TrainingOffline):
    """A training whose clock stands still until a test sets `now`."""

    now = 0.0

    def clock(self):
        return self.now


class Ticking(Standing):
    """A training whose clock advances by a second at each look."""

    def clock(self):
        self.now += 1.0
        return self.now


def delivery(worker, entry, length=2, resets=True, n=3):
    """Return the delivery of `n` samples, the first of a reset, and an episode's report."""
    samples = [
        Sample(
            0, np.full(length, k, np.float32), 0.0, False, False, Info(is_reset=resets and k == 0)
        )
        for k in range(n)
    ]
    episode = EpisodeStats(worker, False, 1.0, 2, True, False, 0.0, 0)
    return Delivery(Buffer(samples, f"{worker}/1/1/0"), (episode,), Receipt(worker, 1, entry))


class OfOneShape(ListMemory):
    """A user's memory that requires samples of one shape."""

    min_run = 1
    error = MemoryContractError

    def append_buffer(self, buffer):
        shapes = {sample.obs.shape for sample in (*self.data, *buffer)}
        if shapes != {(2,)}:
            raise self.error(f"obs has the shapes {shapes}")
        super().append_buffer(buffer)


class HoldingBack(OfOneShape):
    """Such a memory, which gets short runs of samples late."""

    min_run = ListMemory.min_run


class Network(TrainerInterface):
    """Hands over given deliveries, all at once or one by one, and records the trainer's calls.

    Attributes:
        looks: number of calls of `retrieve`.
        is_idle: whether the trainer waits for samples, and none are left.
        published: the training steps of each published policy of a `CountingAgent`.
    """

    def __init__(self, *deliveries, one_by_one=False):
        super().__init__()
        self.deliveries, self.one_by_one = list(deliveries), one_by_one
        self.looks, self.is_idle = 0, False
        self.confirmed, self.refused, self.published, self.trained = [], [], [], []

    def retrieve(self, timeout_s=0.0):
        self.looks += 1
        self.is_idle = timeout_s > 0 and not self.deliveries
        count = 1 if self.one_by_one else len(self.deliveries)
        taken, self.deliveries = self.deliveries[:count], self.deliveries[count:]
        return taken

    def confirm(self, deliveries):
        self.confirmed += [
            (delivery.receipt.worker, delivery.receipt.entry) for delivery in deliveries
        ]

    def reject(self, receipt, reason):
        self.refused.append((receipt, reason))

    def note_trained(self, receipt):
        self.trained.append(receipt.entry)

    def broadcast_model(self, model):
        self.published.append(model.layer.bias.item())
        return len(self.published)

    def who_is_missing(self):
        return "nobody has come"


def coming(worker, entries):
    """Return a network on which these packets of a worker arrive one by one."""
    return Network(*(delivery(worker, entry) for entry in entries), one_by_one=True)


def feed(to, network):
    """Let a training take what has come, without training on it; return the round's record."""
    looks = network.looks
    (record,) = to.run_epoch(network, should_stop=lambda: network.looks > looks)
    return record


def train_until_idle(to, network):
    """Train on what comes until the training waits for more samples."""
    return to.run_epoch(network, should_stop=lambda: network.is_idle)


def resumed(one, two, folder):
    """Let a training go on where another one is; return it."""
    take_snapshot(one).write(folder)
    load_checkpoint(two, folder)
    return two


class Hears(Listener):
    """A listener that keeps all records."""

    def __init__(self):
        self.records = []

    def on_record(self, record):
        self.records.append(record)


def message(number, worker="w", n=10, **header):
    """Return packet `number` (from 1). Its `n` samples have the rewards n * (number - 1) and up,
    and each has its reward plus 1 as entry.
    """
    first, action = n * (number - 1), np.zeros(1, np.float32)
    samples = [
        (action, np.full(2, k, np.float32), float(k), False, False, {})
        for k in range(first, first + n)
    ]
    return packet_of(first + 1, *samples, worker=worker, incarnation=1, **header)


def taken(receiver, data, now=0.0, is_admitted=True):
    """Return the deliveries of a message that arrives."""
    packet, body = m.decode(data)
    return list(receiver.take(packet, body, data, now, lambda packet: is_admitted))


def is_gapless(samples):
    """Whether samples of a `CountingEnv`, (episode, step), continue each other."""
    steps = [tuple(sample.obs.tolist()) for sample in samples]
    return all(b in ((a[0], a[1] + 1), (a[0] + 1, 0)) for a, b in itertools.pairwise(steps))


class Run:
    """A trainer without a network: training, log and checkpoints. `kill` leaves the files on disk
    unchanged.
    """

    alive: ClassVar[list[Checkpoints]] = []

    def __init__(
        self, path, memory=(), memory_cls=ListMemory, resume="all", updater=None, **options
    ):
        """Build or resume a training. `memory` holds options of the memory, `options` those of
        the `Checkpoints`.
        """
        memory_cls = partial(memory_cls, batch_size=2, **dict(memory))
        self.checkpoints = Checkpoints(path, **options)
        self.alive.append(self.checkpoints)
        try:
            make = partial(TrainingOffline, CountingEnv, memory_cls, CountingAgent)
            self.training = self.checkpoints.build(make, resume, updater)
        except BaseException:
            self.kill()
            raise
        self.receiver, self.memory, self.now = self.checkpoints.receiver, self.training.memory, 0.0

    def take(self, *numbers, worker="w", n=10, after_s=1.0, **header):
        """Take packets that arrive together into the memory, then write them to disk. Return the
        number of the newest stored packet of each worker.
        """
        self.now += after_s
        for number in numbers:
            for new in taken(self.receiver, message(number, worker, n, **header), self.now):
                self.memory.append(new.buffer)
                self.training.total_samples += len(new.buffer)
                self.receiver.confirm([new.receipt])
        self.receiver.write(self.now)
        answers = answers_of(self.receiver)
        return {ack.worker: ack.stored // n for ack in answers if isinstance(ack, m.Ack)}

    def save(self, version=1):
        self.training.kept.version = version
        self.checkpoints.save(self.training, wait=True)

    def kill(self):
        self.checkpoints.close()

    @classmethod
    def close_all(cls):
        while cls.alive:
            cls.alive.pop().close()

    @property
    def numbers(self):
        """Rewards of the samples in the memory, in its order."""
        return [int(sample.rew) for sample in self.memory.data if not sample.info.is_context]

    @property
    def counts(self):
        return self.training.total_samples, self.training.total_updates

    @property
    def held(self):
        return self.numbers, self.counts
