"""Several trainers that learn as one: their communication through `torch.distributed`.

Each trainer is a *rank*, 0 to size - 1, with its own part of the samples and its own batches. All
ranks make all calls here in the same order; if a rank is gone or silent for too long, the others
end. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import logging
import os
import re
import secrets
import sys
import time
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import distributed

from tmrl_like.agents.agent import TrainingAgent, modules_of
from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError, RankError
from tmrl_like.trainer.options import RankOptions

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

log = logging.getLogger("tmrl_like.trainer")

_MAX_BYTES = 1 << 31
_LOOK_S = 0.05


class Vote(NamedTuple):
    """The state of one rank, or of all of them together.

    Attributes:
        ready: it can draw a batch; together: all can.
        stop: it is to end; together: one is.
        due: something that only rank 0 decides is due: a publication, the record of a round.
        in_lockstep: it is in lockstep; together: one is.
        samples: samples that have come to it so far; together: their sum. Since this is a running
            total, a vote that is late or repeated counts no sample twice.
        tasks: environment steps that allow training, likewise.
    """

    ready: bool = False
    stop: bool = False
    due: bool = False
    in_lockstep: bool = False
    samples: int = 0
    tasks: int = 0


class Alone:
    """A training with a single trainer, whose state is the state of all.

    Attributes:
        rank: the number of this trainer.
        size: how many trainers there are.
        group: identifies this group of processes among all groups that ever existed; 0: alone.
    """

    rank = 0
    size = 1
    group = 0

    def vote(self, mine: Vote, may_be_late: bool = False) -> tuple[Vote, Vote]:
        """Return the vote of all ranks, the same on each, and this rank's own vote that is part of
        it: usually `mine`.

        With `may_be_late`, the result may be that of the previous vote, which needed no exchange of
        its own: it was sent with the gradients of the training step in between.
        """
        return self._of_all(self.sum(*mine._replace(due=mine.due and self.rank == 0))), mine

    def _of_all(self, sums: list[int]) -> Vote:
        ready, stop, due, in_lockstep, samples, tasks = sums
        return Vote(ready == self.size, stop > 0, due > 0, in_lockstep > 0, samples, tasks)

    def sum(self, *numbers: int) -> list[int]:
        """Return the sum of each number over all ranks."""
        return list(numbers)

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of each rank, by rank."""
        return [data]

    def broadcast(self, data: bytes) -> bytes:
        """Return the data of rank 0."""
        return self.gather(b"" if self.rank else data)[0]

    def check(self, agent: TrainingAgent, training_steps: int) -> None:
        """Check, after a training step, that all ranks learn the same."""

    def begin(self) -> None:
        """Begin training, after all ranks are built: from now on no rank waits longer than
        `timeout_s` for another.
        """

    def leave(self) -> None:
        """End the communication. Calling it twice is fine."""


class Ranks(Alone):
    """One of several ranks. Also implements `agents.agent.Averaging`."""

    def __init__(self, options: RankOptions) -> None:
        """Connect to the other ranks. Reads `RANK`, `WORLD_SIZE` and so on from the environment,
        where torchrun sets them.

        Raises:
            RankError: the others do not connect within `start_timeout_s`.
            ConfigError: a variable is missing or wrong.
        """
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        self._options = options
        self._averages = 0
        self._ballot: Vote | None = None  # the vote that is sent with the next average
        self._late: tuple[Vote, Vote] | None = None  # the result of that vote
        self._timeout = datetime.timedelta(seconds=options.start_timeout_s)
        try:
            self.rank = int(os.environ["RANK"])
            self.size = int(os.environ["WORLD_SIZE"])
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            num_local = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"WORLD_SIZE says that there are several trainers, but {one_line(str(error))} is "
                "not usable: start them with torchrun"
            ) from None
        self._choose_interface(num_local)
        has_gpu = torch.cuda.device_count() >= max(1, num_local)
        backend = options.backend if options.backend != "auto" else "nccl" if has_gpu else "gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank % torch.cuda.device_count())
        with self._said("to meet"):
            store = next(
                rendezvous(options.address or "env://", self.rank, self.size, timeout=self._timeout)
            )[0]
            prefix = _round_of(store, self.rank, self.size, self._timeout)
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if backend == "nccl" else backend,
                store=PrefixStore(prefix, store),
                rank=self.rank,
                world_size=self.size,
                timeout=self._timeout,
            )
        self.group = self.sum(0 if self.rank else secrets.randbits(62) + 1)[0]
        log.info("rank %d of %d (%s)", self.rank, self.size, backend)

    def __deepcopy__(self, memo: dict[int, object]) -> Ranks:
        return self

    def _choose_interface(self, num_local: int) -> None:
        loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
        interface = self._options.interface or (loopback if num_local == self.size else None)
        if interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)

    @contextlib.contextmanager
    def _said(self, what: str = "to answer") -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:  # of many kinds, from gloo, nccl and the store
            reason = one_line(re.sub(r"^(\[[^]]*\] *)+", "", str(error)), 100)
            raise RankError(
                f"rank {self.rank} of {self.size} ends: another one is gone, or took too long "
                f"{what} ({reason}); start all again, or have torchrun do it: training goes on "
                "from the last checkpoint"
            ) from None

    def vote(self, mine: Vote, may_be_late: bool = False) -> tuple[Vote, Vote]:
        late = self._late
        self._late = None
        if late is None or not may_be_late:
            late = super().vote(mine)
        self._ballot = mine._replace(due=False)
        return late

    def mean(self, tensor: torch.Tensor) -> None:
        self._averages += 1
        if (ballot := self._ballot) is None:
            self._add(tensor)
        else:
            self._ballot = None
            said = torch.tensor(ballot, dtype=torch.int64)
            self._add(said, tensor)
            self._late = self._of_all(said.tolist()), ballot
        tensor /= self.size

    def _add(self, *tensors: torch.Tensor) -> None:
        """Add up each tensor over all ranks, in place.

        Two ranks exchange theirs directly, because gloo's ring takes a third longer. They post the
        receives first, so that a sender does not have to ask.
        """
        with self._said():
            if self.size > 2 or any(tensor.device.type != "cpu" for tensor in tensors):
                works = [distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
                for work in works:
                    work.wait()
                return
            other = 1 - self.rank
            others = [torch.empty_like(tensor) for tensor in tensors]
            works = [distributed.irecv(tensor, other) for tensor in others]
            works += [distributed.isend(tensor, other) for tensor in tensors]
            for work in works:
                work.wait(self._timeout)
        for tensor, added in zip(tensors, others, strict=True):
            tensor += added

    def largest(self, tensor: torch.Tensor) -> None:
        with self._said():
            distributed.all_reduce(tensor, distributed.ReduceOp.MAX)

    def sum(self, *numbers: int) -> list[int]:
        said = torch.tensor(numbers, dtype=torch.int64)
        self._add(said)
        sums: list[int] = said.tolist()
        return sums

    def gather(self, data: bytes) -> list[bytes]:
        sizes = self.sum(*(len(data) * (rank == self.rank) for rank in range(self.size)))
        if min(sizes) < 0 or sum(sizes) > _MAX_BYTES:
            raise RankError(
                f"other ranks send {sizes} bytes at once; at most {_MAX_BYTES} are allowed"
            )
        ends = np.cumsum([0, *sizes])
        joined = np.zeros(ends[-1], np.uint8)
        joined[ends[self.rank] : ends[self.rank + 1]] = np.frombuffer(data, np.uint8)
        self._add(torch.from_numpy(joined))  # adds in place
        return [joined[start:end].tobytes() for start, end in itertools.pairwise(ends)]

    def check(self, agent: TrainingAgent, training_steps: int) -> None:
        """Check that the agent averages its gradients and, every `check_every_steps`, that its
        parameters are equal on all ranks.

        Raises:
            ConfigError: the agent does not average.
            RankError: parameters differ.
        """
        if not self._averages:
            raise ConfigError(
                f"{type(agent).__name__} trains alone, and there are {self.size} ranks: call "
                "self.average_gradients(optimizer) between loss.backward() and optimizer.step(), "
                "or start one trainer"
            )
        if not self._options.check_every_steps or training_steps % self._options.check_every_steps:
            return
        checksum = 0
        for module in modules_of(agent).values():
            for tensor in module.state_dict().values():
                if isinstance(tensor, torch.Tensor):
                    checksum = zlib.crc32(
                        tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data, checksum
                    )
        checksums = self.gather(checksum.to_bytes(4, "little"))
        others = [str(rank) for rank, found in enumerate(checksums) if found != checksums[0]]
        if others:
            raise RankError(
                f"after {training_steps} training steps the parameters of rank {', '.join(others)} "
                f"differ from those of rank 0: {type(agent).__name__}.train must change them by "
                "averaged gradients, alike on all ranks"
            )

    def begin(self) -> None:
        self._timeout = datetime.timedelta(seconds=self._options.timeout_s)
        # a new process group would have to connect again
        distributed.distributed_c10d._set_pg_timeout(self._timeout)

    def leave(self) -> None:
        if distributed.is_initialized():  # without this, gloo's threads abort a process that ends
            distributed.destroy_process_group()


def _round_of(store: Store, rank: int, size: int, timeout: datetime.timedelta) -> str:
    """Return a name that these processes share with no earlier ones.

    torchrun keeps one store through all restarts. It still holds the addresses of processes that
    are gone, and a process that reads them before they are replaced waits for minutes. So rank 0
    names a round, and announces which processes have answered.
    """
    own = secrets.token_hex(8)
    until = time.monotonic() + timeout.total_seconds()
    if rank == 0:
        answers = [f"tmrl/{own}/{other}" for other in range(1, size)]
        store.set("tmrl/round", own)
        store.wait(answers, timeout)
        store.set(f"tmrl/{own}", " ".join(store.get(answer).decode() for answer in answers))
        return own
    while time.monotonic() < until:
        named: str = store.get("tmrl/round").decode()  # perhaps by a rank 0 that is gone
        store.set(f"tmrl/{named}/{rank}", own)
        if store.check([f"tmrl/{named}"]) and own.encode() in store.get(f"tmrl/{named}").split():
            return named
        time.sleep(_LOOK_S)
    raise RuntimeError("rank 0 does not answer")


def meet(options: RankOptions) -> Alone:
    """Return the ranks of this training: several if `WORLD_SIZE` in the environment is above 1."""
    return Alone() if os.environ.get("WORLD_SIZE", "1") in ("", "0", "1") else Ranks(options)
