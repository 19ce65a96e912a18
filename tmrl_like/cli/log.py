"""`tmrl-like log`: summarises what a trainer has stored, a worker has left or a data set holds, or
converts it for Minari.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tmrl_like.base.text import one_line
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.tables import mean_and_std, print_table
from tmrl_like.config.paths import RunPaths
from tmrl_like.errors import CheckpointError, ConfigError
from tmrl_like.replay.data_sets import read_data_set, stored_files, stores_at
from tmrl_like.replay.minari import find_minari, write_minari
from tmrl_like.wire.messages import SamplePacket, WireVersionError
from tmrl_like.wire.packet import samples_up_to

_COLUMNS = ["worker, process", "began", "packets", "missing", "samples", "MB", "episodes", "return"]


@dataclass
class _Contents:
    """A summary of the packets of one worker process."""

    packets: int = 0
    samples: int = 0
    missing: int = 0  # in entries
    newest: int = 0
    started_at_s: float = 0.0
    returns: list[float] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, packet: SamplePacket, size_bytes: int) -> None:
        """Count the new part of a packet; some of its entries may have been in an earlier one."""
        if packet.last <= self.newest:
            return
        if self.packets:
            self.missing += max(0, packet.first - self.newest - 1)
        self.packets += 1
        self.samples += packet.samples - samples_up_to(packet, self.newest)
        self.started_at_s = self.started_at_s or packet.observed_at_s
        reports = (report for entry, report in packet.episodes if entry > self.newest)
        self.returns += [
            report.return_ for report in reports if not report.test and not report.fault
        ]
        self.newest = packet.last
        self.size_bytes += size_bytes


def main(arguments: Arguments) -> int:
    """Show a log, or write it in another format."""
    path = _stored(arguments)
    if arguments.minari:
        target = Path(arguments.minari)
        try:
            if target.is_file() or (target.is_dir() and any(target.iterdir())):
                raise ConfigError(f"{target} exists: choose another folder for the Minari data set")
            episodes, steps = write_minari(target, read_data_set(path))
        except OSError as error:
            raise ConfigError(f"--minari {target}: {one_line(error)}") from None
        print(
            f"{target}: {steps} steps of {episodes} whole episodes, observations as they are in "
            "the log"
        )
        return 0
    if find_minari(path) is not None:
        raise ConfigError(
            f"{path} is a data set of Minari, which has no packets: look at it with minari, or "
            "start a memory from it (dataset_path)"
        )
    rows = []
    for store in stores_at(path):
        contents: dict[tuple[str, int], _Contents] = {}
        for packet, size_bytes in _packets(store):
            contents.setdefault((packet.worker, packet.incarnation), _Contents()).add(
                packet, size_bytes
            )
        rows += [_row(*item) for item in contents.items()]
    print_table(str(path), _COLUMNS, rows)
    return 0


def _stored(arguments: Arguments) -> Path:
    """Return the path of the samples; for a run, of those that its trainer has kept."""
    path = Path(arguments.place or "")
    try:
        run = path if path.exists() else arguments.found.folder()
        kept = RunPaths.of(run).checkpoint
        return kept if kept.is_dir() else path
    except ConfigError as error:
        raise ConfigError(f"there is no data set at {path}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _packets(path: Path) -> Iterator[tuple[SamplePacket, int]]:
    try:
        for file in stored_files(path):
            yield from ((packet, len(message)) for packet, _, message, _ in file.packets())
    except WireVersionError as error:
        raise CheckpointError(
            f"{path} cannot be read: it holds {error}; read it with the tmrl_like that wrote it"
        ) from None


def _row(process: tuple[str, int], contents: _Contents) -> list[str]:
    began = (
        datetime.datetime.fromtimestamp(contents.started_at_s) if contents.started_at_s else None
    )
    returns = "{:.3g} ± {:.3g}".format(*mean_and_std(contents.returns)) if contents.returns else "-"
    return [
        f"{process[0]}, {process[1]:x}",
        f"{began:%Y-%m-%d %H:%M:%S}" if began else "-",
        f"{contents.packets:,}",
        f"{contents.missing:,}",
        f"{contents.samples:,}",
        f"{contents.size_bytes / 1e6:.1f}",
        f"{len(contents.returns):,}",
        returns,
    ]
