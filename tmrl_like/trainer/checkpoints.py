"""The trainer's checkpoints: bring a training back, keep it on disk beside training."""

from __future__ import annotations

import functools
import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import torch

from tmrl_like.agents.agent import TrainingAgent, modules_of
from tmrl_like.base.checked import checked_json, read_checked
from tmrl_like.base.files import lock_folder, write_atomically
from tmrl_like.base.threads import thread_beside
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sample_store import SampleStore
from tmrl_like.errors import CheckpointError, ConfigError, MemoryContractError
from tmrl_like.policies.weights import refuse_diverged
from tmrl_like.trainer.manifest import read_manifest
from tmrl_like.trainer.options import Resume
from tmrl_like.trainer.ranks import Alone
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.snapshot import give_up_checkpoint, load_checkpoint, shared, take_snapshot
from tmrl_like.types import Receipt
from tmrl_like.wire.messages import WireVersionError

log = logging.getLogger("tmrl_like.trainer")

Dump = Callable[[TrainingOffline, Any], None]
Load = Callable[[Any], TrainingOffline]
Updater = Callable[[TrainingOffline, Any], TrainingOffline]

_LOCK_WITHIN_S = 10.0  # a rank that was killed may need a moment to end


class _Sidecar(msgspec.Struct):
    """What is kept beside a checkpoint in the user's own format.

    Attributes:
        version: of the policy published last.
        receipts: the entries that are in the dump.
        uncounted_samples: see `Checkpoints`; None: the data set's.
        previous: the same for the dump that this one replaces, while that is being done.
        previous_files: what distinguishes that dump from this one.
        given_up_files: the same for a dump that no longer counts: a training was begun from nothing.
    """

    version: int = 0
    receipts: tuple[Receipt, ...] = ()
    uncounted_samples: int | None = None
    previous: _Sidecar | None = None
    previous_files: list[tuple[str, int, int, int]] = []
    given_up_files: list[tuple[str, int, int, int]] = []


class Checkpoints:
    """Keeps one training in a folder: samples in a store, as they arrive, and what was learnt in checkpoints.

    The training thread takes snapshots; another thread writes them.

    Attributes:
        receiver: knows what the memory of the training that `build` made holds.
        version: of the policy that this training published last; 0: none.
    """

    def __init__(
        self,
        path: Path | None,
        dump: Dump | None = None,
        load: Load | None = None,
        ranks: Alone | None = None,
        sync_every_s: float = 0.0,
    ) -> None:
        """Nothing happens yet; see `Trainer` and `TrainerOptions` for the arguments.

        Of several `ranks`, rank 0 writes checkpoints.

        Raises:
            ConfigError: several trainers, and a format that only one can write.
        """
        self.path = path
        self._ranks = ranks or Alone()
        if self._ranks.size > 1 and (dump is not None or load is not None):
            raise ConfigError("several trainers keep checkpoints in our own format: leave dump and load functions out")
        self._dump = dump
        self._load = load
        self._store: SampleStore | None = None
        self._left: list[SampleStore] = []  # of ranks that are no more; kept as they are, and read at each start
        self.receiver = Receiver()
        self.version = 0
        self._writer: ThreadPoolExecutor | None = None
        self._sync_every_s = sync_every_s
        self._storer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._uncounted_samples = 0  # total_samples is so many more than were ever stored
        self._skipped = False
        self._failure: Exception | None = None  # of the checkpoint written last

    # -- bringing a training back --------------------------------------------------------------------

    def build(
        self, training_cls: Callable[[], TrainingOffline], resume: Resume, updater: Updater | None = None
    ) -> TrainingOffline:
        """Make the training, or bring it back and have `updater` patch it; then give its memory what is stored.

        Raises:
            CheckpointError: the checkpoint is damaged, lacks its manifest, is of another training, or in use.
            ShortageError: the system gives it no threads.
        """
        if self.path is None:
            training = training_cls()
            shared(training, {}, self._ranks)
            return training
        own_format = self._dump is not None or self._load is not None
        folder = self.path.with_name(f"{self.path.name}.log") if own_format else _log_of(self.path, self._ranks.rank)
        self._writer = thread_beside("tmrl-checkpoint")
        self._storer = thread_beside("tmrl-log") if self._sync_every_s else None  # what is not synced takes no time
        self._store = self._open(folder, self._storer)
        try:
            if not own_format:
                self._open_stores_left(self.path)
            return self._build(self.path, self._store, training_cls, resume, updater)
        except BaseException as error:
            for store in (self._store, *self._left):
                store.close()
            if isinstance(error, WireVersionError):
                raise CheckpointError(
                    f"the samples in {self.path} cannot be read: they are of {error}; go on with the tmrl_like that "
                    "wrote them, or choose another run name"
                ) from None
            raise

    def _build(
        self,
        path: Path,
        store: SampleStore,
        training_cls: Callable[[], TrainingOffline],
        resume: Resume,
        updater: Updater | None,
    ) -> TrainingOffline:
        runs = [run.decode() for run in self._ranks.gather(store.run.encode())]
        run = next(filter(None, [*runs, *(left.run for left in self._left)]), "")
        manifest = None if self._load is not None or self._ranks.rank else read_manifest(path)
        sidecar = _read_sidecar(path) if self._load is not None and path.exists() else None
        is_given_up = sidecar is not None and sidecar.given_up_files == _files_of(path)
        has_checkpoint = manifest is not None or (sidecar is not None and not is_given_up)
        is_there = bool(has_checkpoint or store or self._left)
        if resume == "none" or self._ranks.sum(is_there) == [0]:
            training = training_cls()
            if has_checkpoint:
                self._give_up(path)
            for kept in (store, *self._left):
                kept.clear()
            run = str(shared(training, {"run": secrets.token_hex(8)}, self._ranks)["run"])
            self._uncounted_samples = training.total_samples
            self.receiver = Receiver(store, run, training.memory.memory_size)
            return training
        if self._load is not None and sidecar is not None and has_checkpoint:
            training = self._load(path)
        else:
            training, sidecar = training_cls(), _Sidecar()
            is_of_this_run = manifest is not None and run in ("", manifest.run)
            if is_of_this_run and resume == "all":
                extra = load_checkpoint(training, path)
                sidecar = _Sidecar(int(extra["version"]), uncounted_samples=extra.get("uncounted_samples"))
        run = run or (manifest.run if manifest is not None else secrets.token_hex(8))
        own = {"run": run, "version": sidecar.version, "uncounted_samples": sidecar.uncounted_samples}
        said = shared(training, own, self._ranks)
        run, sidecar.version = str(said["run"]), int(said["version"])
        sidecar.uncounted_samples = said["uncounted_samples"]
        others = {found.run for found in (store, *self._left)} - {"", run}
        if others:
            raise CheckpointError(
                f"{path} holds samples of several trainings ({run} and {', '.join(others)}): move rank-* away, or "
                "begin with resume none"
            )
        training = training if updater is None else updater(training, training_cls)
        self.receiver = Receiver(store, run, training.memory.memory_size)
        self._replay(training, path, sidecar, counts=resume == "all")
        if manifest is not None and resume == "memory":
            self._give_up(path)
        log.info(
            "resumed from %s: epoch %d, %d training steps, %d samples",
            *(path, training.epoch, training.total_updates, training.total_samples),
        )
        self.version = sidecar.version
        return training

    def _open(self, folder: Path, beside: ThreadPoolExecutor | None = None) -> SampleStore:
        lock = None
        try:
            lock = lock_folder(folder, _LOCK_WITHIN_S if self._ranks.size > 1 else 0.0)
            if lock is not None:
                return SampleStore(folder, lock, self._sync_every_s, beside)
        except OSError as error:
            if lock is not None:
                lock.release()
            raise CheckpointError(f"cannot keep samples in {folder}: {error}") from None
        raise CheckpointError(f"{self.path} is in use by another trainer: end that one, or choose another run name")

    def _open_stores_left(self, path: Path) -> None:
        """Those of ranks that are no more: of each sees one rank to it."""
        ranks = [int(folder.name[5:]) for folder in path.glob("rank-*") if folder.name[5:].isdecimal()]
        for rank in sorted(rank for rank in ranks if rank >= self._ranks.size):
            if rank % self._ranks.size == self._ranks.rank:
                store = self._open(_log_of(path, rank))
                if store:
                    self._left.append(store)
                else:
                    store.close()

    def gather_receipts(self, rank_of: Callable[[str, int], int]) -> None:
        """Learn what other ranks have stored of the workers that are this one's now, in a group of any size.

        What is stored stays in the memory of the rank in whose store it lies. `rank_of(worker, size)` says whose a
        worker is; all ranks have built their trainings.
        """
        for said in self._ranks.gather(msgspec.msgpack.encode(self.receiver.receipts)):
            receipts = msgspec.msgpack.decode(said, type=list[Receipt])
            own = [r for r in receipts if rank_of(r.worker, self._ranks.size) == self._ranks.rank]
            self.receiver.note_stored(own)

    def _give_up(self, path: Path) -> None:
        """Give up the checkpoint there before its training is removed; CheckpointError: all is as it was."""
        try:
            if self._load is None:
                give_up_checkpoint(path)
            else:
                write_atomically(_sidecar_of(path), checked_json(_Sidecar(given_up_files=_files_of(path))))
        except OSError as error:
            raise CheckpointError(
                f"cannot give up the checkpoint in {path}: {error}; make room, or choose another run name"
            ) from None

    def _replay(self, training: TrainingOffline, path: Path, sidecar: _Sidecar, counts: bool) -> None:
        """Give the memory what is stored; `counts`: all samples that ever came count, not only those."""
        left = [Receiver() for _ in self._left]  # one each: a worker may have gone from rank to rank and come back
        try:
            for receiver, store in zip(left, self._left, strict=True):
                for buffer in receiver.replay(store.files()):
                    training.memory.append(buffer)
            for buffer in self.receiver.replay(known=sidecar.receipts):
                training.memory.append(buffer)
            for receiver in left:
                self.receiver.note_stored(receiver.receipts)
        except MemoryContractError as error:
            raise CheckpointError(
                f"the samples in {path} do not fit the memory: {error}; restore the settings they were made with, or "
                "start again with another run name"
            ) from None
        kept, in_memory = self._ranks.sum(sum(r.samples for r in (*left, self.receiver)), len(training.memory))
        if not counts:
            training.total_samples = training.pacer.recorded_samples = in_memory
            self._uncounted_samples = training.total_samples - kept
            return
        of_checkpoint = sidecar.uncounted_samples
        self._uncounted_samples = training.pacer.recorded_samples if of_checkpoint is None else of_checkpoint
        samples = self._uncounted_samples + kept
        if samples > training.total_samples:
            training.pacer.before_samples(training.total_updates, training.total_samples)
            training.total_samples = samples

    # -- keeping it ----------------------------------------------------------------------------------

    def save(self, training: TrainingOffline, version: int, wait: bool = False) -> None:
        """Write a checkpoint, between two training steps; a full disk is logged, and stops nothing.

        Without `wait` it is written meanwhile, or skipped where the one before is still being written. `version` is
        that of the policy published last.

        Raises:
            DivergedError: a module of the agent's has parameters that are not finite; nothing is written.
        """
        refuse_diverged(_parameters_of(training.agent))
        if self.path is None or self._ranks.rank:
            return
        self._skipped = not wait and self._writing is not None and not self._writing.done()
        if self._skipped:
            log.info("the checkpoint before is still being written: this one is left out")
            return
        self._wait()
        started = time.monotonic()
        if self._dump is not None:
            sidecar = _Sidecar(version, tuple(self.receiver.receipts), self._uncounted_samples)
            self._try(functools.partial(self._dump_as_asked, self._dump, training, sidecar))
            return
        extra = {"version": version, "uncounted_samples": self._uncounted_samples}
        snapshot = take_snapshot(training, extra, self.receiver.run)
        snapshot.training["counters"]["total_samples"] -= self.receiver.unstored_samples
        log.debug("training was held for %.1f ms by a checkpoint", 1e3 * (time.monotonic() - started))
        write = functools.partial(self._try, functools.partial(snapshot.write, self.path))
        assert self._writer is not None
        try:
            self._writing = self._writer.submit(write)
        except RuntimeError:  # the interpreter exits, and starts no thread any more
            write()
        if wait:
            self._wait()

    def finish(self, training: TrainingOffline, version: int) -> None:
        """Training is over: see that its last state is on disk; CheckpointError: it could not be written."""
        if self._skipped:
            self.save(training, version, wait=True)
        self._wait()
        if self._failure is not None:
            raise CheckpointError(
                f"the last checkpoint of this training is missing, the one before it stays: {self._failure}"
            )

    def close(self) -> None:
        """Wait for what is being written, and leave the folder. Twice is fine."""
        try:
            self._wait()
        except Exception as error:
            log.error("the last checkpoint in %s was not written: %s", self.path, error)
        if self._store is not None:
            self.receiver.finish()
        for store in (self._store, *self._left):
            if store is not None:
                store.close()
        self._store, self._left = None, []
        for beside in (self._writer, self._storer):
            if beside is not None:
                beside.shutdown()

    def _wait(self) -> None:
        """Wait until the checkpoint that is being written is; raise what that raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _dump_as_asked(self, dump: Dump, training: TrainingOffline, sidecar: _Sidecar) -> None:
        """Have the user's function write; killed at any point, the receipts found are those of the dump found."""
        assert self.path is not None
        training.memory.flush()
        sidecar.previous, sidecar.previous_files = _read_sidecar(self.path), _files_of(self.path)
        write_atomically(_sidecar_of(self.path), checked_json(sidecar))
        dump(training, self.path)
        sidecar.previous, sidecar.previous_files = None, []
        write_atomically(_sidecar_of(self.path), checked_json(sidecar))

    def _try(self, write: Callable[[], None]) -> None:
        """Log what fails once, until it works again."""
        started = time.monotonic()
        try:
            write()
        except (CheckpointError, OSError, MemoryError) as error:
            if self._failure is None:
                log.error("%s; training goes on", error if str(error) else "no memory is left for a checkpoint")
            self._failure = error
            return
        self._failure = None
        log.info("checkpoint written in %.2f s", time.monotonic() - started)


def _parameters_of(agent: TrainingAgent) -> dict[str, torch.Tensor]:
    """Those of all its modules, by name."""
    return {
        f"{name}.{parameter}": tensor.detach()
        for name, module in modules_of(agent).items()
        for parameter, tensor in module.named_parameters()
    }


def _log_of(path: Path, rank: int) -> Path:
    return path / f"rank-{rank}" / "log" if rank else path / "log"


def _sidecar_of(path: Path) -> Path:
    """Where the receipts of a checkpoint in the user's own format are kept."""
    return path.with_name(f"{path.name}.receipts.json")


def _read_sidecar(path: Path) -> _Sidecar:
    try:
        found = read_checked(_sidecar_of(path).read_bytes(), _Sidecar)
        return found.previous if found.previous is not None and found.previous_files == _files_of(path) else found
    except FileNotFoundError:
        return _Sidecar()
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s): samples may come twice", _sidecar_of(path), error)
        return _Sidecar()


def _files_of(path: Path) -> list[tuple[str, int, int, int]]:
    """Name, inode, time and size of each file of a dump: what changes when it is written."""
    files = [(str(file.relative_to(path)), file.stat()) for file in sorted([path, *path.rglob("*")]) if file.is_file()]
    return [(name, found.st_ino, found.st_mtime_ns, found.st_size) for name, found in files]
