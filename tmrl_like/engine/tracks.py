"""A gateway's bookkeeping: how far the entries of each worker process have come on their way to an
engine's stream.

There is no thread, clock or socket here. Only numbers are kept: workers send again what the stream
does not take.
"""

from __future__ import annotations

from dataclasses import dataclass

from tmrl_like.wire import messages as m

_MAX_PROCESSES = 8192


@dataclass(eq=False, slots=True)
class _Track:
    """How far the entries of one worker process have come. Entries that the trainer has stored, or
    will never get, count as confirmed.
    """

    process: tuple[str, int]  # worker, incarnation
    sent: int = 0  # entries up to this one are in the stream or in flight to it, without a gap
    confirmed: int = 0  # … are in the stream
    stored: int = 0  # … are stored by the trainer
    trained: int = 0

    def confirm(self, entry: int) -> None:
        self.confirmed = max(self.confirmed, entry)
        self.sent = max(self.sent, entry)

    def fall_back(self, entry: int) -> None:
        """Count entries after this one as not sent, unless they are confirmed."""
        self.sent = max(self.confirmed, min(self.sent, entry))


class Tracks:
    """Tracks every worker process that a gateway has heard from."""

    def __init__(self, max_processes: int = _MAX_PROCESSES) -> None:
        """Follow this many processes at most."""
        self._max_processes = max_processes
        self._tracks: dict[tuple[str, int], _Track] = {}
        # tracks whose workers must get an acknowledgement; True: with a request to send again
        self._due: dict[_Track, bool] = {}

    def begins(self, packet: m.SamplePacket) -> bool:
        """Whether to publish a packet: only if no entry before it is missing."""
        track = self._track_of(packet)
        is_next = packet.first <= track.sent + 1
        if is_next:
            track.sent = max(track.sent, packet.last)
        return is_next

    def ends(self, packet: m.SamplePacket, is_taken: bool) -> None:
        """Note whether the stream has taken a packet; its entries are confirmed if all before them
        are.
        """
        track = self._track_of(packet)
        is_confirmed = is_taken and packet.first <= track.confirmed + 1
        if is_confirmed:
            track.confirm(packet.last)
        else:
            track.fall_back(packet.first - 1)
        self._tell(track, again=not is_confirmed)

    def _track_of(self, packet: m.SamplePacket) -> _Track:
        process = (packet.worker, packet.incarnation)
        if process not in self._tracks and len(self._tracks) >= self._max_processes:
            self._tracks.clear()  # workers are asked again for what is not stored
        track = self._tracks.setdefault(process, _Track(process))
        track.confirm(packet.oldest - 1)  # earlier entries are stored, or never come
        return track

    def on_ack(self, ack: m.Ack) -> None:
        """Process the trainer's acknowledgement; what it asks for again is not in the stream."""
        track = self._tracks.get((ack.worker, ack.incarnation))
        if track is None:  # the process is at another gateway
            return
        track.stored = max(track.stored, ack.stored)
        track.trained = max(track.trained, ack.trained)
        if ack.again:
            track.confirmed = min(track.confirmed, ack.received)
            track.fall_back(ack.received)
        track.confirm(track.stored)
        self._tell(track, ack.again)

    def _tell(self, track: _Track, again: bool) -> None:
        self._due[track] = again or self._due.get(track, False)

    def words(self) -> list[m.Ack]:
        """Return the acknowledgements that are due to the workers."""
        due, self._due = self._due, {}
        return [
            m.Ack(*t.process, t.stored, t.confirmed, again, t.trained) for t, again in due.items()
        ]
