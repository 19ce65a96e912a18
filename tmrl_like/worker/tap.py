"""The samples of a standalone worker, taken in its own process."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.wire import messages as m

if TYPE_CHECKING:
    from tmrl_like.worker.worker import RolloutWorker

_ENDLESS_BYTES = 1 << 50

Taken: TypeAlias = tuple[m.SamplePacket, memoryview, bytes]
"""A packet, its body, and the message that held both."""


class SampleTap:
    """Takes the packets that would have left for a server; any number may wait to be taken."""

    def __init__(self, worker: RolloutWorker, options: OutboxOptions | None = None) -> None:
        """Begin with the samples that come next; `options` say when a packet leaves."""
        options = replace(
            options or OutboxOptions(), max_bytes=_ENDLESS_BYTES, window_bytes=_ENDLESS_BYTES
        )
        self._loops = [lane.loop for lane in worker.lanes]
        with contextlib.ExitStack() as closing:
            folder = open_folder(None, worker.name)
            closing.callback(folder.close)
            self._logs = [SampleLog(folder, _ENDLESS_BYTES) for _ in self._loops]
            for log in self._logs:
                closing.callback(log.close)
            self._outbox = Outbox(
                folder.path,
                worker.name,
                [log.incarnation for log in self._logs],
                folder.dead,
                options,
            )
            closing.callback(self._outbox.close)
            self._closing = closing.pop_all()
        for loop, log in zip(self._loops, self._logs, strict=True):
            loop.samples = log

    def refill(self) -> None:
        """Prepare files, so that no control loop has to make them; see `SampleLog.refill`."""
        for log in self._logs:
            log.refill()

    def take(self, everything: bool = False, awaits: bool = False) -> list[Taken]:
        """Return the packets that are due; all entries are due with `everything`, or if control
        loops in lockstep wait for them (`awaits`).
        """
        taken: list[Taken] = []

        def keep(data: bytes) -> bool:
            packet, body = m.decode(data)
            assert isinstance(packet, m.SamplePacket)
            taken.append((packet, body, data))
            return True

        if everything:
            self._outbox.hasten()
        self._outbox.pump(keep, may_send=True, awaits=awaits)
        for packet, _, _ in taken:
            self._outbox.on_ack(m.Ack(packet.worker, packet.incarnation, packet.last, packet.last))
        return taken

    def close(self) -> None:
        """Detach from the worker. Calling it twice is fine."""
        for loop in self._loops:
            loop.samples = None
        self._closing.close()
