"""The part of a columnar memory that keeps its rows in files: see `durable` for what is in them."""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from tmrl_like.errors import CheckpointError
from tmrl_like.memories.columns import Array, Column, FieldColumns
from tmrl_like.memories.durable import FORMAT, Kept, ReplayFiles
from tmrl_like.memories.lanes import Lanes, Rows
from tmrl_like.memory_dataloading import MemoryDataloading
from tmrl_like.types import Receipt

logger = logging.getLogger("tmrl_like.trainer")


class MemoryInFiles(MemoryDataloading):
    """A memory whose rows lie in `_fields`, indexed by `_lanes`, and may lie in files.

    A subclass calls `_begin`, `_mark` and `_refile` where it writes, and counts in `_appended`.
    """

    _lanes: Lanes
    _fields: list[FieldColumns]
    _appended = 0  # samples ever appended, by earlier processes too
    _files: ReplayFiles | None = None
    _are_foreign = False  # the columns lie in files that are not ours any more
    _run = ""
    _receipts: tuple[Receipt, ...] = ()  # of packets that are not in the files yet

    @abstractmethod
    def _clear(self, capacity: int) -> None:
        """Be empty, with room for so many rows."""

    @property
    @abstractmethod
    def _settings(self) -> dict[str, bool]:
        """What the rows depend on, so that others cannot read them."""

    @property
    def kept(self) -> Kept | None:
        """See `MemoryDataloading`; None, too, until the first step of an episode has told the columns."""
        return None if self._files is None else self._files.kept

    @property
    def receipts(self) -> list[Receipt]:
        """See `MemoryDataloading`."""
        return [] if self._files is None else self._files.receipts

    @property
    def keeps_files(self) -> bool:
        """See `MemoryDataloading`."""
        return self._files is not None

    def keep_in(self, folder: Path, run: str = "", receipts: Sequence[Receipt] = ()) -> None:
        """See `MemoryDataloading`. With CRC debugging the samples stay in RAM."""
        if self.crc_debug:
            return
        self._files = ReplayFiles(folder)
        self._run, self._receipts = run, tuple(receipts)
        self._create_files()

    def recover(self, folder: Path) -> bool:
        """See `MemoryDataloading`. `memory_size` and `act_buf_len` may have changed since."""
        self._files = files = ReplayFiles(folder)
        fields = files.recover()
        if fields is None or files.kept is None:
            self.close()
            return False
        kept = files.kept
        if kept.settings != self._settings:
            raise CheckpointError("last_act_on_reset or reset_act_buf is not what the samples were stored with")
        self._run, self._appended = kept.run, kept.appended
        self._clear(kept.capacity)
        self._fields = fields
        self._lanes.start_at(kept.oldest)
        for stream, _, is_reset in files.runs():
            self._lanes.extend(stream, is_reset)
        if self.crc_debug:
            self._leave_files()
        if kept.capacity != self.memory_size:
            self._receipts = tuple(files.receipts)
            self.set_contents(self.contents())
        return True

    def commit(self, receipts: Sequence[Receipt]) -> bool:
        """See `MemoryDataloading`."""
        if self._files is None:
            return False
        self._receipts += tuple(receipts)
        if self.kept is None:
            return False
        with self._files_may_fail():
            self._files.commit(self._lanes.written, self._receipts)
            self._receipts = ()
        return self._files is not None

    def close(self) -> None:
        """See `MemoryDataloading`. What is appended after it is in RAM only."""
        if self._files is not None:
            self._are_foreign = self.kept is not None
            self._files.close()
            self._files = None

    def _create_files(self) -> None:
        """Move the columns, if they are known already, into new files."""
        if self._files is None or not self._fields:
            return
        lanes = self._lanes
        kept = Kept(
            format=FORMAT,
            run=self._run,
            settings=self._settings,
            capacity=lanes.capacity,
            oldest=lanes.oldest,
            written=lanes.written,
            appended=self._appended,
            fields=[(field.name, msgspec.msgpack.encode(field.node)) for field in self._fields],
            columns=[],
            streams={},
            receipts=list(self._receipts) if lanes.written else [],
        )
        runs = [(run.lane.stream, run.start, run.end) for run in lanes.runs]
        with self._files_may_fail():
            self._files.create(kept, self._fields, runs, lanes.is_reset)

    def _begin(self, samples: int) -> None:
        """So many samples are about to be written."""
        if self._are_foreign:
            self._copy_into_ram()
        if self._files is not None and self.kept is not None:
            with self._files_may_fail():
                self._files.begin(self._lanes.written + samples - self._lanes.capacity)

    def _mark(self, rows: Rows, stream: str, is_reset: Array) -> None:
        """These rows are about to be written."""
        if self._files is not None and self.kept is not None:
            with self._files_may_fail():
                self._files.mark(rows, stream, is_reset)

    def _refile(self, column: Column) -> None:
        """The array of a column may be another one."""
        if self._files is not None and self.kept is not None and not self._files.holds(column):
            with self._files_may_fail():
                self._files.replace(self._fields, column)

    @contextlib.contextmanager
    def _files_may_fail(self) -> Iterator[None]:
        """A disk that takes no more does not stop training: go on in RAM."""
        try:
            yield
        except OSError as error:
            size = sum(column.array.nbytes for field in self._fields for column in field.columns)
            logger.error(
                "samples cannot be kept on the disk as they arrive: %s (memory_size %d takes %.0f MB); they are in RAM "
                "now and on the disk only with each checkpoint: make room and start the trainer again",
                error,
                self._lanes.capacity,
                size / 1e6,
            )
            self._leave_files()

    def _leave_files(self) -> None:
        self.close()
        if self._are_foreign:
            self._copy_into_ram()

    def _copy_into_ram(self) -> None:
        filled = min(self._lanes.written, self._lanes.capacity)
        for field in self._fields:
            for column in field.columns:
                mapped, column.array = column.array, np.zeros_like(column.array)
                column.array[:filled] = mapped[:filled]
        self._are_foreign = False
