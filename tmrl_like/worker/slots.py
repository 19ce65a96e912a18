"""Policies in memory that two processes share: the link fills one slot while control loops act with
others.

Both processes map one file::

    head      words of 8 bytes: which policy is ready, which one each lane took, what is known of it
    input     float32 [R], the newest observation as the network sees it; R is 0 for a torch actor
    slots     3 policies and one for each lane: the actor's parameters, raw, in the actor's order

Each policy has a word that names it and its slot. The link writes the word of the newest policy,
and each lane the word of the policy that it took, in a single store: taking a policy means storing
a word. The link fills a slot again when it holds neither a policy that is taken nor one of the two
newest, which may be about to be taken.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tmrl_like.base.files import map_file, reserve
from tmrl_like.policies.weight_file import Manifest, Weights, size_of

FILE = "policies"
_READY, _BEFORE, _TAKEN = range(3)  # words: the newest, the one before it, and the first lane's
_ALIGNED = 64


class PolicyInSlot(NamedTuple):
    """A policy in a slot."""

    word: int  # names it among all policies that were ever ready
    version: int  # the trainer's number
    # when its last frame first arrived: `time.perf_counter()`, which all processes of a machine
    # share
    received_at: float
    slot: int


class PolicySlots:
    """The file, as mapped by one of the two processes.

    Attributes:
        input: float32 [R], a view.
        ready: a view with one item, the word of the newest policy; 0: there is none yet.
        slots: the contents of each slot, views.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, input_size: int = 0, lanes: int = 1
    ) -> None:
        """Map the file; create it if it does not exist.

        Args:
            folder: in memory that both processes share.
            manifest: the actor's manifest.
            input_size: R.
            lanes: number of lanes, each of which takes policies by itself.

        Raises:
            OSError: there is no room for the file.
        """
        path, size = folder / FILE, size_of(manifest)
        self._count = lanes + 3
        known = 8 * (_TAKEN + lanes)
        head_bytes = known + 8 * 3 * self._count
        begin, step = _aligned(head_bytes + 4 * input_size), _aligned(size)
        if not path.exists():
            reserve(path, begin + self._count * step)
        memory = memoryview(map_file(path))
        self._words = memory[:known].cast("Q")
        self.ready = self._words[:1]
        self._known = np.frombuffer(memory, np.float64, 3 * self._count, known).reshape(-1, 3)
        self.input = np.frombuffer(memory, np.float32, input_size, head_bytes)
        starts = range(begin, begin + self._count * step, step)
        self.slots = [Weights(manifest, memory[start : start + size]) for start in starts]

    # -- the link ----------------------------------------------------------------------------------

    def free_slot(self) -> int:
        """Return a slot that is not in use."""
        in_use = {word % self._count for word in self._words}
        return next(slot for slot in range(self._count) if slot not in in_use)

    def publish(self, slot: int, version: int, published_at_s: float, received_at: float) -> int:
        """Make the policy in a slot the newest one; return the word that names it.

        A server sends its policy again to peers that reconnect: it was received when it first came.
        """
        ready = self._words[_READY]
        word = (ready // self._count + 1) * self._count + slot
        *newest, newest_received_at = self._known[ready % self._count].tolist()
        if newest == [version, published_at_s]:
            received_at = newest_received_at
        self._known[slot] = version, published_at_s, received_at
        self._words[_BEFORE] = ready
        self._order()
        self._words[_READY] = word
        return word

    def held(self, word: int) -> tuple[int, Weights] | None:
        """Return the trainer's number and the weights of a policy that is in use; None: its slot
        may hold another policy by now.
        """
        slot = word % self._count
        return (int(self._known[slot, 0]), self.slots[slot]) if word in self._words else None

    # -- the control loops -------------------------------------------------------------------------

    def has_new(self, lane: int = 0) -> bool:
        """Whether there is a newer policy than the one that a lane has taken."""
        return self._words[_READY] != self._words[_TAKEN + lane]

    def take(self, lane: int = 0) -> PolicyInSlot:
        """Take the newest policy: its slot stays unchanged until this lane takes another one."""
        while True:
            word = self._words[_TAKEN + lane] = self._words[_READY]
            self._order()
            # otherwise, the link may have chosen the slot before the word was visible
            if self._words[_READY] == word:
                slot = word % self._count
                version, _, received_at = self._known[slot].tolist()
                return PolicyInSlot(word, int(version), received_at, slot)

    def _order(self) -> None:
        """Make earlier stores visible to other processors before later ones."""
        barrier = threading.Lock()
        barrier.acquire()
        barrier.release()  # no earlier store moves behind this,
        barrier.acquire()  # and no later one before this


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
