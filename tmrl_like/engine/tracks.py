"""How far the entries of each worker process are on their way to an engine's stream: bookkeeping of
a gateway.

No thread, no clock and no socket. Nothing is kept but numbers: what the stream does not take, its
worker sends again.
"""

from __future__ import annotations

from dataclasses import dataclass

from tmrl_like.wire import messages as m

_MAX_PROCESSES = 8192


@dataclass(eq=False, slots=True)
class _Track:
    """How far one worker process is. What the trainer has stored, or never gets, counts as
    confirmed.
    """

    process: tuple[str, int]  # worker, incarnation
    sent: int = 0  # up to this entry they are in the stream or on their way to it, without a hole
    confirmed: int = 0  # … and the stream has them
    stored: int = 0  # as the trainer says
    trained: int = 0

    def confirm(self, entry: int) -> None:
        self.confirmed = max(self.confirmed, entry)
        self.sent = max(self.sent, entry)

    def fall_back(self, entry: int) -> None:
        """What follows this entry is to be sent again, where it is not confirmed."""
        self.sent = max(self.confirmed, min(self.sent, entry))


class Tracks:
    """Of all worker processes that a gateway has heard of."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, int], _Track] = {}
        # whose workers are to hear something; True: send again, please
        self._due: dict[_Track, bool] = {}

    def begins(self, packet: m.SamplePacket) -> bool:
        """Whether a packet is to be published: nothing is missing before it."""
        track = self._track_of(packet)
        is_next = packet.first <= track.sent + 1
        if is_next:
            track.sent = max(track.sent, packet.last)
        return is_next

    def ends(self, packet: m.SamplePacket, is_taken: bool) -> None:
        """The stream has taken a packet, or not; its entries are confirmed where it has all before
        them.
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
        if process not in self._tracks and len(self._tracks) >= _MAX_PROCESSES:
            self._tracks.clear()  # what is not stored is asked for again
        track = self._tracks.setdefault(process, _Track(process))
        track.confirm(packet.oldest - 1)  # what was before it is stored, or never comes
        return track

    def on_ack(self, ack: m.Ack) -> None:
        """What the trainer says of a process; what it asks for again, the stream has not got."""
        track = self._tracks.get((ack.worker, ack.incarnation))
        if track is None:  # another gateway's
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
        """What is to be said to the workers."""
        due, self._due = self._due, {}
        return [
            m.Ack(*t.process, t.stored, t.confirmed, again, t.trained) for t, again in due.items()
        ]
