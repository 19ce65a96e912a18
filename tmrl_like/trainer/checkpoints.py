"""The trainer's checkpoints: restores a training, and saves it to disk while it goes on."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from tmrl_like.agents.agent import modules_of
from tmrl_like.base.files import disk, lock_folder
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import call_beside, thread_beside
from tmrl_like.delivery.receiver import BlockCheck, Receiver
from tmrl_like.delivery.sample_store import SampleStore
from tmrl_like.errors import CheckpointError, ConfigError, MemoryContractError, unexpected
from tmrl_like.policies.weights import refuse_diverged
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.trainer.checkpoint_file import remove_checkpoints
from tmrl_like.trainer.options import Resume
from tmrl_like.trainer.ranks import Alone
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.snapshot import load_checkpoint, share, take_snapshot
from tmrl_like.types import Receipt
from tmrl_like.wire.messages import WireVersionError, share_of

log = logging.getLogger("tmrl_like.trainer")

Make = Callable[[], TrainingOffline]
Dump = Callable[[TrainingOffline, Path], None]
Load = Callable[[Path], TrainingOffline]
Updater = Callable[[TrainingOffline, Make], TrainingOffline]


def flush_what_fits(memory: MemoryDataloading) -> None:
    """Put samples that are held back into the memory; those that do not fit are dropped, with a
    warning.
    """
    try:
        memory.flush()
    except MemoryContractError as error:
        log.warning("samples that were held back do not fit and are dropped: %s", error)


@dataclass(eq=False)
class Checkpoints:
    """Keeps one training in a folder: samples in a store, as they arrive, and everything that was
    learnt in checkpoints.

    The training thread takes snapshots; another thread writes them. See `Trainer` and
    `TrainerOptions` for the first fields. Raises ConfigError if there are several trainers and a
    format that only one can write, or a `load` without a `dump`.

    Attributes:
        path: folder of the checkpoints; None: nothing is kept.
        dump: writes them in the user's format.
        load: reads them.
        ranks: of several, rank 0 writes checkpoints.
        sync_every_s: longest time until samples are synced to the disk, in seconds.
        interval_s: least time between two checkpoints, in seconds.
        check_of: makes the check that a training's samples from workers must pass.
        beside: starts a writing thread with this name.
        lock_within_s: with several ranks, how long to wait, in seconds, for a process that holds
            the folder, and perhaps was killed, to end.
        receiver: tracks the contents of the memory of the training that `build` made.
    """

    path: Path | None
    dump: Dump | None = None
    load: Load | None = None
    ranks: Alone = field(default_factory=Alone)
    sync_every_s: float = 0.0
    interval_s: float = 0.0
    check_of: Callable[[TrainingOffline], BlockCheck | None] = lambda training: None
    beside: Callable[[str], Executor] = thread_beside
    lock_within_s: float = 10.0

    def __post_init__(self) -> None:
        if self.ranks.size > 1 and (self.dump is not None or self.load is not None):
            raise ConfigError(
                "several trainers keep checkpoints in our own format: leave dump and load "
                "functions out"
            )
        if self.load is not None and self.dump is None:
            raise ConfigError(
                "load_run_instance_fn reads what dump_run_instance_fn writes: give both of them"
            )
        self.receiver = Receiver()
        # the last one is this rank's own; before it, those of ranks that no longer exist
        self._stores: list[SampleStore] = []
        self._threads: list[Executor] = []  # they write checkpoints and samples
        self._writing: Future[None] | None = None
        self._saved_at = -math.inf
        self._skipped = False
        self._failure = ""  # of the checkpoint written last

    # -- bringing a training back ------------------------------------------------------------------

    def build(self, make: Make, resume: Resume, updater: Updater | None = None) -> TrainingOffline:
        """Make the training, or restore it and have `updater` patch it; then fill its memory with
        the stored samples.

        If this raises, `close` closes what was opened.

        Raises:
            CheckpointError: the checkpoint is damaged, belongs to another training, or is in use.
            ShortageError: the system cannot start a thread.
        """
        if self.path is None:
            training = make()
            share(training, self.ranks)
            self.receiver = Receiver(check=self.check_of(training))
            return training
        self._open_stores(self.path)
        try:
            return self._build(self.path, make, resume, updater)
        except WireVersionError as error:
            raise CheckpointError(
                f"the samples in {self.path} cannot be read: they are of {error}; go on with the "
                "tmrl_like that wrote them, or choose another run name"
            ) from None

    def _open_stores(self, path: Path) -> None:
        """Open the store of this rank, and its share of the stores of ranks that no longer
        exist.
        """
        own = self.ranks.rank
        size = self.ranks.size
        left = [folder.name[5:] for folder in path.glob("rank-*")]
        of_all = sorted(int(rank) for rank in left if rank.isdecimal())
        mine = [rank for rank in of_all if rank >= size and rank % size == own]
        folders = [path / f"rank-{rank}/log" if rank else path / "log" for rank in (*mine, own)]
        if self.dump is not None:
            folders = [path.with_name(f"{path.name}.log")]
        self._threads = [self.beside("tmrl-checkpoint")]
        if self.sync_every_s:  # without syncing, writing takes no time
            self._threads.append(self.beside("tmrl-log"))
        for folder in folders:
            self._stores.append(self._open(folder))

    def _open(self, folder: Path) -> SampleStore:
        lock = None
        try:
            lock = lock_folder(folder, self.lock_within_s if self.ranks.size > 1 else 0.0)
            if lock is not None:
                return SampleStore(folder, lock, self.sync_every_s, *self._threads[1:])
        except OSError as error:
            if lock is not None:
                lock.release()
            raise CheckpointError(f"cannot keep samples in {folder}: {error}") from None
        raise CheckpointError(
            f"{self.path} is in use by another trainer: end that one, or choose another run name"
        )

    def _build(
        self, path: Path, make: Make, resume: Resume, updater: Updater | None
    ) -> TrainingOffline:
        ranks = self.ranks
        kept_run = None
        if resume == "all" and ranks.rank == 0:
            training, kept_run = self._restore(path, make)
        else:
            training = make()
        if resume == "none":  # afterwards, so that nothing is lost if that fails
            self._give_up(path)
            for store in self._stores:
                store.clear()
        runs = {kept_run or "", *(store.run for store in self._stores)} - {""}
        is_resumed = ranks.sum(kept_run is not None or any(self._stores)) != [0]
        # a new run's id, which rank 0 makes up, gives way to one that another rank has stored
        own = max(runs, default="" if ranks.rank else secrets.token_hex(8))
        of_rank_0, *of_others = ranks.gather(own.encode())
        run = next(filter(None, of_others), of_rank_0).decode()
        if others := runs - {run}:
            raise CheckpointError(
                f"{path} holds samples of several trainings ({run} and {', '.join(others)}), "
                "or a checkpoint of another one: move what does not belong there away (rank-*), or "
                "begin with resume none"
            )
        share(training, ranks)
        if updater is not None and is_resumed:
            training = _training(updater(training, make), "updater_fn")
        store = self._stores[-1]
        store.keep_samples = training.memory.memory_size
        self.receiver = Receiver(store, run, check=self.check_of(training))
        self._replay(training, counts=resume != "memory")
        if resume == "memory":
            self._give_up(path)
        if is_resumed:
            log.info(
                "resumed from %s: epoch %d, %d training steps, %d samples",
                path,
                training.epoch,
                training.total_updates,
                training.total_samples,
            )
        return training

    def _restore(self, path: Path, make: Make) -> tuple[TrainingOffline, str | None]:
        """Return the saved training and its run (empty if the checkpoint does not name one), or a
        new training and None if none was saved.
        """
        if self.load is not None and path.exists():
            return _training(self.load(path), "load_run_instance_fn"), ""
        training = make()
        head = load_checkpoint(training, path) if self.dump is None else None
        return training, None if head is None else head.run

    def _give_up(self, path: Path) -> None:
        """Discard the checkpoint before its training is removed. If this raises CheckpointError,
        the saved training still exists.
        """
        try:
            if self.dump is None and self.ranks.rank == 0:
                remove_checkpoints(path)
            elif self.load is not None and path.exists():
                disk.rename(path, path.with_name(f"{path.name}.before-{secrets.token_hex(4)}"))
                disk.sync_folder(path.parent)
        except OSError as error:
            raise CheckpointError(
                f"cannot give up the checkpoint in {path}: {error}; see to its permissions, or "
                "choose another run name"
            ) from None

    def _replay(self, training: TrainingOffline, counts: bool) -> None:
        """Fill the memory with the stored samples. With `counts`, all samples that ever came are
        counted, not only these.
        """
        memory = training.memory
        pacer = training.pacer
        kept = training.kept
        elapsed_s = training.elapsed_s
        has_them = kept.uncounted_samples is None and len(memory) > pacer.recorded_samples
        if has_them:
            log.warning(
                "a training was loaded that has samples and does not say which (training.kept): "
                "those stored in %s are not added to them",
                self._stores[-1].folder,
            )
        # one worker may have sent samples to each of these ranks
        receivers = [*(Receiver() for _ in self._stores[1:]), self.receiver]
        try:
            for receiver, store in zip(receivers, self._stores, strict=True):
                for buffer in receiver.replay(store.files(), kept.receipts):
                    if not has_them:
                        memory.append(buffer)
        except MemoryContractError as error:
            raise CheckpointError(
                f"the samples in {self.path} do not fit the memory: {error}; restore the settings "
                "they were made with, or start again with another run name"
            ) from None
        for receiver in receivers[:-1]:
            self.receiver.note_stored(receiver.receipts)
        stored, in_memory = self.ranks.sum(
            sum(receiver.samples for receiver in receivers), len(memory)
        )
        self.receiver.began_with = stored
        if not counts:
            training.total_samples = pacer.recorded_samples = in_memory
            kept.uncounted_samples = in_memory - stored
        elif kept.uncounted_samples is None:
            kept.uncounted_samples = pacer.recorded_samples
        if (samples := kept.uncounted_samples + stored) > training.total_samples:
            pacer.before_samples(training.total_updates, training.total_samples)
            pacer.recount(training.total_samples, samples)
            training.total_samples = samples
        training.elapsed_s = elapsed_s  # this was no training

    def gather_receipts(self) -> None:
        """Find out what other ranks have stored of the workers that now belong to this rank, in a
        group of any size.

        Stored samples stay in the memory of the rank whose store has them. Call this after all
        ranks have built their trainings.
        """
        for said in self.ranks.gather(msgspec.msgpack.encode(self.receiver.receipts)):
            receipts = msgspec.msgpack.decode(said, type=list[Receipt])
            own = [r for r in receipts if share_of(r.worker, self.ranks.size) == self.ranks.rank]
            self.receiver.note_stored(own)

    # -- saving it ---------------------------------------------------------------------------------

    def save(self, training: TrainingOffline, wait: bool = False) -> None:
        """Write a checkpoint, between two training steps. A full disk is logged and does not stop
        training.

        Without `wait`, it is written while training goes on, or skipped if the previous one was
        written less than `interval_s` ago, or is still being written.

        Raises:
            DivergedError: a module of the agent has parameters that are not finite; nothing is
                written.
        """
        refuse_diverged(
            {
                f"{name}.{parameter}": tensor.detach()
                for name, module in modules_of(training.agent).items()
                for parameter, tensor in module.named_parameters()
            }
        )
        if self.path is None or self.ranks.rank:
            return
        is_early = time.monotonic() - self._saved_at < self.interval_s
        is_writing = self._writing is not None and not self._writing.done()
        self._skipped = not wait and (is_early or is_writing)
        if self._skipped:
            if is_writing:
                log.info("the previous checkpoint is still being written: this one is skipped")
            return
        self._saved_at = time.monotonic()
        self._wait()
        if self.dump is not None:  # the user's function reads the training itself
            flush_what_fits(training.memory)
            training.kept.receipts = self.receiver.receipts
            self._try(partial(self.dump, training), self.path)
            return
        snapshot = take_snapshot(training, self.receiver.run, self.receiver.unstored_samples)
        self._writing = call_beside(self._threads[0], partial(self._try, snapshot.write, self.path))
        if wait:
            self._wait()

    def finish(self, training: TrainingOffline) -> None:
        """Make sure that the last state of a finished training is on disk.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._skipped:
            self.save(training, wait=True)
        self._wait()
        if self._failure:
            stays = ", the one before it stays" if self.dump is None else ""
            raise CheckpointError(
                f"the last checkpoint of this training is missing{stays}: {self._failure}"
            )

    def close(self) -> None:
        """Wait for unfinished writes, and close the folder. Calling it twice is fine."""
        try:
            self._wait()
        except Exception as error:
            log.error("the last checkpoint in %s was not written: %s", self.path, error)
        if self._stores:
            self.receiver.finish()
        while self._stores:
            self._stores.pop().close()
        for thread in self._threads:
            thread.shutdown()

    def _wait(self) -> None:
        """Wait until the current checkpoint is written, and raise what the writing raised."""
        writing = self._writing
        self._writing = None
        if writing is not None:
            writing.result()

    def _try(self, write: Callable[[Path], None], path: Path) -> None:
        """Write a checkpoint. A failure is logged once, until writing succeeds again."""
        started = time.monotonic()
        try:
            write(path)
        except Exception as error:
            # torch.save, in a function of the user's, raises it if the disk is full
            is_of_torch = type(error) is RuntimeError and self.dump is not None
            if not (is_of_torch or isinstance(error, OSError | MemoryError | CheckpointError)):
                raise
            reason = str(error) or "no memory is left"
            failure = f"cannot write the checkpoint to {path}: {one_line(reason)}"
            if not self._failure:
                log.error("%s; training goes on", failure)
            self._failure = failure
            return
        self._failure = ""
        log.info("checkpoint written in %.2f s", time.monotonic() - started)


def _training(returned: object, name: str) -> TrainingOffline:
    """Return what a function of the user's returned; raise ConfigError unless it is a training."""
    if not isinstance(returned, TrainingOffline):
        raise unexpected(name, returned, "the training")
    return returned
