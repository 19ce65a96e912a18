"""The rows of a replay memory in files: what was committed is found again after a kill at any moment.

In the folder::

    replay.lock         held by the process that writes
    replay-N/           the newest one that is complete counts
      journal-0, -1     what of the rows counts, see `journal`
      origin            uint16 [capacity]: which stream a row came from; the highest bit: a reset
      act-0, obs-0, …   one column per leaf, [capacity, ...], memory-mapped

An append takes three steps: a record that the rows to be overwritten count no more, the rows, and a record that
commits them together with the receipts of their packets. Whatever a kill leaves undone is dropped, and nothing
else. What lies in the files survives the process; after a power cut it is as old as the system's last write.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock
import msgspec
import numpy as np

from tmrl_like.errors import CheckpointError, DecodingError
from tmrl_like.files import map_file, reserve
from tmrl_like.memories.columns import Array, Column, FieldColumns
from tmrl_like.memories.journal import Journal
from tmrl_like.types import Receipt
from tmrl_like.wire.schema import Node

FORMAT = 1
_RESET = 1 << 15
_ORIGIN = "origin"
_MANY_STREAMS = 1024
_encode = msgspec.msgpack.encode
_node_decoder: msgspec.msgpack.Decoder[Node] = msgspec.msgpack.Decoder(Node)


class Kept(msgspec.Struct, kw_only=True):
    """What counts of the rows: the head of the journal, kept up to date.

    Attributes:
        format: of the files.
        run: which training the samples belong to.
        settings: what the samples were stored with.
        capacity: rows of the ring.
        oldest, written: sequence numbers of the rows that count, [oldest, written); row = number modulo capacity.
        appended: samples ever appended, those of files before these among them.
        fields: name and structure of each field.
        columns: per field, the file of each leaf.
        streams: number in `origin` -> stream.
        receipts: the newest packet of each worker process that is in the memory.
    """

    format: int
    run: str
    settings: dict[str, bool]
    capacity: int
    oldest: int
    written: int
    appended: int
    fields: list[tuple[str, bytes]]
    columns: list[list[str]]
    streams: dict[int, str]
    receipts: list[Receipt]


class _Begin(msgspec.Struct, array_like=True, tag="begin"):
    """Rows before this sequence number are being overwritten."""

    oldest: int


class _Commit(msgspec.Struct, array_like=True, tag="commit"):
    """Rows up to this sequence number are whole."""

    written: int
    streams: dict[int, str]  # new ones
    receipts: list[Receipt]


_kept_decoder = msgspec.msgpack.Decoder(Kept)
_record_decoder: msgspec.msgpack.Decoder[_Begin | _Commit] = msgspec.msgpack.Decoder(_Begin | _Commit)


class ReplayFiles:
    """Keeps the rows of one memory; see the module. Not thread-safe.

    `create` or `recover` comes first. Every method that writes raises OSError when it cannot; what was committed
    until then stays.
    """

    def __init__(self, folder: Path) -> None:
        """Take the folder; it is made if need be.

        Raises:
            CheckpointError: another process has it, or it cannot be made.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = filelock.FileLock(folder / "replay.lock", thread_local=False)
            self._lock.acquire(blocking=False)
        except filelock.Timeout:
            raise CheckpointError(
                f"{folder} is in use by another trainer: end that one, or choose another run name"
            ) from None
        except OSError as error:
            raise CheckpointError(f"cannot keep samples in {folder}: {error}") from None
        self._home = folder
        self._folder = folder
        self._journal: Journal | None = None
        self._origin: Array = np.zeros(0, np.uint16)
        self._arrays: dict[str, Array] = {}  # by file
        self._numbers: dict[str, int] = {}
        self._new_streams: dict[int, str] = {}
        self._receipts: dict[tuple[str, int], Receipt] = {}
        self._forget_streams_at = _MANY_STREAMS
        self.kept: Kept | None = None

    def close(self) -> None:
        """Let go of journal and folder; arrays that were mapped stay usable. Twice is fine."""
        if self._journal is not None:
            self._journal.close()
        self._lock.release()

    # ---- from the disk

    def recover(self) -> list[FieldColumns] | None:
        """Find the newest complete rows.

        Returns:
            Their columns, mapped; None where there are none. `kept` says what of them counts.

        Raises:
            CheckpointError: they are damaged.
        """
        damage = ""
        for folder in _newest_first(self._home):
            try:
                fields = self._open(folder)
            except (OSError, DecodingError, ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
                damage = damage or f"the samples in {folder} are damaged ({error}); move the folder away to start anew"
                continue
            if fields is not None:
                return fields
        if damage:
            raise CheckpointError(damage)
        return None

    def _open(self, folder: Path) -> list[FieldColumns] | None:
        opened = Journal.open(folder)
        if opened is None:
            return None
        journal, (head, *records) = opened
        try:
            kept = self._replayed(_kept_decoder.decode(head), records)
            fields = [FieldColumns(name, _node_decoder.decode(node), kept.capacity) for name, node in kept.fields]
            for field, names in zip(fields, kept.columns, strict=True):
                for column, name in zip(field.columns, names, strict=True):
                    column.array = self._arrays[name] = _mapped(folder / name, column.array)
            self._origin = _mapped(folder / _ORIGIN, np.zeros(kept.capacity, np.uint16))
        except BaseException:
            journal.close()
            raise
        self._folder, self._journal, self.kept = folder, journal, kept
        self._numbers = {stream: number for number, stream in kept.streams.items()}
        self._rotate()
        return fields

    def _replayed(self, kept: Kept, records: Sequence[bytes]) -> Kept:
        if kept.format != FORMAT:
            raise DecodingError(f"format {kept.format}, this tmrl_like reads {FORMAT}")
        self._receipts = {receipt[:2]: receipt for receipt in kept.receipts}
        for data in records:
            record = _record_decoder.decode(data)
            if isinstance(record, _Begin):
                kept.oldest = record.oldest
                continue
            kept.appended += record.written - kept.written
            kept.written = record.written
            kept.streams.update(record.streams)
            self._take_receipts(record.receipts)
        kept.oldest = min(kept.oldest, kept.written)
        return kept

    def runs(self) -> Iterator[tuple[str, Array, Array]]:
        """Consecutive rows of one stream, oldest first: (stream, sequence numbers [n], is_reset [n])."""
        kept = self._state
        if kept.oldest == kept.written:
            return
        numbers = np.arange(kept.oldest, kept.written)
        origin = self._origin[numbers % kept.capacity]
        streams = origin & (_RESET - 1)
        starts = [0, *(np.flatnonzero(np.diff(streams)) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
            stream = kept.streams.get(int(streams[start]))
            if stream is None:
                raise CheckpointError(f"the samples in {self._folder} are damaged; move the folder away to start anew")
            yield stream, numbers[start:end], origin[start:end] >= _RESET

    # ---- a new home

    def create(
        self,
        kept: Kept,
        fields: Sequence[FieldColumns],
        runs: Sequence[tuple[str, int, int]],
        is_reset: Array,
    ) -> None:
        """Move rows into files; they count, instead of what was there before, when all is in place.

        Args:
            kept: what counts; names of files and streams are filled in.
            fields: the columns; they are mapped when this returns.
            runs: (stream, first sequence number, last + 1) of all rows.
            is_reset: bool [capacity].

        Raises:
            OSError: they do not fit; the columns are where they were.
        """
        older = _newest_first(self._home)
        folder = self._home / f"replay-{_number_of(older[0]) + 1 if older else 1}"
        filled = min(kept.written, kept.capacity)
        kept.columns = [[f"{field.name}-{k}" for k in range(len(field.columns))] for field in fields]
        columns = [column for field in fields for column in field.columns]
        names = [name for field in kept.columns for name in field]
        self._receipts = {receipt[:2]: receipt for receipt in kept.receipts}
        self._numbers, self._new_streams = {}, {}
        if self._journal is not None:
            self._journal.close()
        folder.mkdir()
        try:
            arrays = {
                name: _filed(folder / name, column.array, filled) for name, column in zip(names, columns, strict=True)
            }
            self._origin = _filed(folder / _ORIGIN, np.zeros(kept.capacity, np.uint16), 0)
            self.kept = kept
            for stream, start, end in runs:
                rows = np.arange(start, end) % kept.capacity
                self.mark(rows, stream, is_reset[rows])
            self._journal = Journal.create(folder, self._head())
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._folder = folder
        self._arrays = arrays
        for name, column in zip(names, columns, strict=True):
            column.array = arrays[name]
        for other in older:
            shutil.rmtree(other, ignore_errors=True)

    def holds(self, column: Column) -> bool:
        """Whether the column's array is one of the files."""
        return any(array is column.array for array in self._arrays.values())

    def replace(self, fields: Sequence[FieldColumns], column: Column) -> None:
        """Give a column that has been put elsewhere, with another dtype, a file again."""
        kept = self._state
        for field, names in zip(fields, kept.columns, strict=True):
            if column in field.columns:
                place = field.columns.index(column)
                old, names[place] = names[place], f"{names[place]}-{column.array.dtype.str[1:]}"
                column.array = _filed(self._folder / names[place], column.array, kept.capacity)
                self._arrays.pop(old)
                self._arrays[names[place]] = column.array
        kept.fields = [(field.name, _encode(field.node)) for field in fields]
        self._rotate()
        (self._folder / old).unlink(missing_ok=True)

    # ---- appending

    def begin(self, oldest: int) -> None:
        """Rows before sequence number `oldest` are about to be overwritten."""
        if oldest > self._state.oldest:
            self._state.oldest = oldest
            self._append(_Begin(oldest))

    def mark(self, rows: Array, stream: str, is_reset: Array) -> None:
        """Note where rows came from: their stream, and bool [n]."""
        number = self._numbers.get(stream)
        if number is None:
            number = self._new_number(stream)
        self._origin[rows] = number | is_reset.astype(np.uint16) << 15

    def commit(self, written: int, receipts: Sequence[Receipt]) -> None:
        """All rows before sequence number `written` are whole, and these packets are among them."""
        kept = self._state
        if written == kept.written and not receipts:
            return
        kept.appended += written - kept.written
        kept.written = written
        self._take_receipts(receipts)
        streams, self._new_streams = self._new_streams, {}
        self._append(_Commit(written, streams, list({receipt[:2]: receipt for receipt in receipts}.values())))

    @property
    def receipts(self) -> list[Receipt]:
        """The newest packet of each worker process that was committed."""
        return list(self._receipts.values())

    @property
    def _state(self) -> Kept:
        assert self.kept is not None
        return self.kept

    def _take_receipts(self, receipts: Sequence[Receipt]) -> None:
        self._receipts.update((receipt[:2], receipt) for receipt in receipts)

    def _append(self, record: _Begin | _Commit) -> None:
        assert self._journal is not None
        if not self._journal.append(_encode(record)):
            self._rotate()

    def _rotate(self) -> None:
        assert self._journal is not None
        self._journal.rotate(self._head())

    def _head(self) -> bytes:
        self._state.receipts = self.receipts
        return _encode(self._state)

    def _new_number(self, stream: str) -> int:
        """A number for a stream; those of streams that no row has any more are given anew."""
        streams = self._state.streams
        if len(streams) >= self._forget_streams_at:
            self._forget_streams()
        number = next(number for number in range(len(streams) + 1) if number not in streams)
        streams[number] = self._new_streams[number] = stream
        self._numbers[stream] = number
        return number

    def _forget_streams(self) -> None:
        streams = self._state.streams
        used = np.bincount(self._origin & (_RESET - 1), minlength=_RESET)
        for number in [number for number in streams if not used[number]]:
            del self._numbers[streams.pop(number)]
        if len(streams) >= _RESET:
            raise OSError(f"the memory holds samples of {len(streams)} streams, more than its files can tell apart")
        self._forget_streams_at = min(_RESET, max(_MANY_STREAMS, 2 * len(streams)))
        self._rotate()


def has_replay(folder: Path) -> bool:
    """Whether there are files of a replay memory in `folder`."""
    return any((replay / "journal-0").is_file() for replay in _newest_first(folder))


def remove_replay(folder: Path) -> None:
    """Remove all files of a replay memory from `folder`."""
    for replay in _newest_first(folder):
        shutil.rmtree(replay, ignore_errors=True)


def _newest_first(home: Path) -> list[Path]:
    return sorted((f for f in home.glob("replay-*") if f.is_dir() and _number_of(f)), key=_number_of, reverse=True)


def _number_of(folder: Path) -> int:
    number = folder.name.removeprefix("replay-")
    return int(number) if number.isdecimal() else 0


def _filed(path: Path, array: Array, rows: int) -> Array:
    """A file for an array, mapped, with the first `rows` rows in it."""
    if not array.nbytes:
        return array
    path.unlink(missing_ok=True)
    reserve(path, array.nbytes)
    mapped = _mapped(path, array)
    mapped[:rows] = array[:rows]
    return mapped


def _mapped(path: Path, like: Array) -> Array:
    """The file as an array of the shape and dtype of `like`."""
    if not like.nbytes:
        return like
    return np.frombuffer(map_file(path, like.nbytes), like.dtype).reshape(like.shape)
