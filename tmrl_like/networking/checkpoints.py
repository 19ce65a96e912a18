"""The trainer's checkpoints: bring a training back, keep it on disk beside training."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from tmrl_like.checkpoint import Snapshot, has_checkpoint, load_checkpoint, new_run, take_snapshot
from tmrl_like.errors import CheckpointError
from tmrl_like.files import write_atomically
from tmrl_like.networking.trainer_link import TrainerLink
from tmrl_like.training_offline import TrainingOffline
from tmrl_like.types import Receipt

log = logging.getLogger("tmrl_like.trainer")

Resume = Literal["all", "memory", "none"]
Bookkeeping = dict[str, Any]
Dump = Callable[[TrainingOffline, Any], None]
Load = Callable[[Any], TrainingOffline]
Updater = Callable[[TrainingOffline, Any], TrainingOffline]


class Checkpoints:
    """Keeps one training in a folder. The training thread takes snapshots; another thread writes them.

    A memory that can keeps its samples there as they arrive; the snapshots then do without them.
    """

    def __init__(self, path: Path | None, dump: Dump | None = None, load: Load | None = None) -> None:
        """Nothing happens yet.

        Args:
            path: the folder; None: no checkpoints.
            dump: f(training, path), instead of our own format.
            load: f(path) -> training, instead of our own format.
        """
        self.path = path
        self._dump = dump
        self._load = load
        self._run = ""
        self._writer = _Writer()
        self._skipped = False
        self._failure = ""  # of the checkpoint written last

    def build(
        self, training_cls: Callable[[], TrainingOffline], resume: Resume, updater: Updater | None = None
    ) -> tuple[TrainingOffline, Bookkeeping]:
        """Make the training, or bring it back and have `updater` patch it.

        Returns:
            The training, and what `TrainerLink.bookkeeping` said when it was saved.

        Raises:
            CheckpointError: the checkpoint is damaged, lacks its manifest, is of another training, or in use.
        """
        path = self.path
        if path is None:
            return training_cls(), {}
        if not (path.exists() if self._load else has_checkpoint(path)) or resume == "none":
            training, self._run = training_cls(), new_run()
            self._keep(training, path)
            return training, {}
        if self._load is not None:
            training, bookkeeping = self._load(path), _read_sidecar(path)
        else:
            training = training_cls()
            bookkeeping = self._restore(training, path, memory_only=resume == "memory")
        log.info(
            "resumed from %s: epoch %d, %d training steps, %d samples",
            path,
            training.epoch,
            training.total_updates,
            training.total_samples,
        )
        return self._updated(training, updater, training_cls, bookkeeping), bookkeeping

    def _updated(
        self, training: TrainingOffline, updater: Updater | None, training_cls: Any, bookkeeping: Bookkeeping
    ) -> TrainingOffline:
        memory = training.memory
        try:
            training = training if updater is None else updater(training, training_cls)
        except BaseException:
            memory.close()
            raise
        if training.memory is not memory and self.path is not None:
            memory.close()
            self._keep(training, self.path, bookkeeping.get("processes"))
        return training

    def _restore(self, training: TrainingOffline, path: Path, memory_only: bool) -> Bookkeeping:
        restored = load_checkpoint(training, path, memory_only)
        self._run = restored.run
        if restored.receipts is not None:
            return restored.extra | {"processes": restored.receipts}
        self._keep(training, path, restored.extra.get("processes"))
        return restored.extra

    def _keep(self, training: TrainingOffline, path: Path, processes: Iterable[Iterable[Any]] | None = None) -> None:
        if self._dump is None:
            training.memory.keep_in(path, self._run, [Receipt(*process) for process in processes or ()])

    def save(self, training: TrainingOffline, link: TrainerLink, wait: bool = False) -> None:
        """Write a checkpoint; a full disk is said, and stops nothing.

        Without `wait` it is written meanwhile, or skipped where the one before is still being written.

        Raises:
            EncodingError: the memory holds something that cannot be written without pickle.
        """
        if self.path is None:
            return
        self._skipped = not wait and self._writer.is_busy
        if self._skipped:
            log.info("the checkpoint before is still being written: this one is left out")
            return
        self._writer.wait()
        started = time.monotonic()
        bookkeeping = link.bookkeeping()
        if self._dump is not None:
            self._try(functools.partial(self._dump_as_asked, self._dump, training, bookkeeping), bookkeeping, link)
            return
        snapshot = take_snapshot(training, bookkeeping, self._run)
        log.debug("training was held for %.1f ms by a checkpoint", 1e3 * (time.monotonic() - started))
        self._writer.start(functools.partial(self._write, snapshot, bookkeeping, link))
        if wait:
            self._writer.wait()

    def finish(self, training: TrainingOffline, link: TrainerLink) -> None:
        """Training is over: see that its last state is on disk, and say if it is not."""
        if self._skipped:
            self.save(training, link, wait=True)
        self._writer.wait()
        if self._failure:
            log.error("training ends without its last checkpoint: %s", self._failure)

    def close(self) -> None:
        """Wait for what is being written; what nobody waits for any more is said in the log. Twice is fine."""
        try:
            self._writer.wait()
        except Exception as error:
            log.error("the last checkpoint in %s was not written: %s", self.path, error)

    def _write(self, snapshot: Snapshot, bookkeeping: Bookkeeping, link: TrainerLink) -> None:
        assert self.path is not None
        is_stored = None if snapshot.memory is None else bookkeeping
        self._try(functools.partial(snapshot.write, self.path), is_stored, link)

    def _dump_as_asked(self, dump: Dump, training: TrainingOffline, bookkeeping: Bookkeeping) -> None:
        assert self.path is not None
        dump(training, self.path)
        write_atomically(_sidecar(self.path), msgspec.json.encode(bookkeeping))

    def _try(self, write: Callable[[], None], stored: Bookkeeping | None, link: TrainerLink) -> None:
        """Say what fails once, until it works again."""
        started = time.monotonic()
        try:
            write()
        except (CheckpointError, OSError) as error:
            if not self._failure:
                log.error("%s; training goes on", error)
            self._failure = str(error)
            return
        self._failure = ""
        if stored is not None:
            link.checkpoint_written(stored)
        log.info("checkpoint written in %.2f s", time.monotonic() - started)


class _Writer:
    """Runs one call at a time in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, call: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(call,), name="tmrl-checkpoint")
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter exits, and starts no thread any more
            self._thread = None
            self._run(call)

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Wait for the end of the call; raise what it raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error


def _sidecar(path: Path) -> Path:
    """Where the bookkeeping of a checkpoint in the user's own format is kept."""
    return path.with_name(f"{path.name}.bookkeeping.json")


def _read_sidecar(path: Path) -> Bookkeeping:
    try:
        bookkeeping: Bookkeeping = msgspec.json.decode(_sidecar(path).read_bytes(), type=dict[str, Any])
        return {"version": int(bookkeeping["version"]), "processes": [Receipt(*p) for p in bookkeeping["processes"]]}
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        log.warning("%s cannot be read (%s): samples may come twice", _sidecar(path), error)
        return {}
