"""Policies in memory that two processes share: the link fills a slot, control loops act with
others.

A file that both map::

    head      words of 8 bytes: which policy is ready, which one each lane took, what is known of it
    input     float32 [R], the newest observation as the network sees it; R is 0 for one in torch
    slots     3 policies and one for each lane: the actor's parameters, raw, in the actor's order

A policy has a word that names it and its slot. The word of the newest one is written by the link,
the word of the one that a lane took by that lane, each in one store: to take a policy is to store a
word. The link fills a slot again when it holds neither a policy that was taken nor one of the two
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
_READY, _BEFORE, _TAKEN = range(3)  # words: the newest, the one before it, and one of each lane
_ALIGNED = 64


class PolicyInSlot(NamedTuple):
    """A policy in a slot."""

    word: int  # names it among all that were ever ready
    version: int  # the trainer's number
    published_at_s: float  # Unix time, by the trainer's clock
    # `time.perf_counter()`, which all processes of a machine share, when its last frame was here
    received_at: float
    slot: int  # where it is


class PolicySlots:
    """The file, mapped by one of the two sides.

    Attributes:
        input: float32 [R], a view.
        ready: a view whose one item is the word of the newest policy; 0: there is none yet.
        slots: what each slot holds, views.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, input_size: int = 0, lanes: int = 1
    ) -> None:
        """Map the file, which is made if it is not there.

        Args:
            folder: in memory that two processes share.
            manifest: of the actor.
            input_size: R.
            lanes: how many take policies, each by itself.

        Raises:
            OSError: there is no room for it.
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
        self._barrier = threading.Lock()  # nobody else uses it, see `_order`
        self._barrier.acquire()
        self._ordering = threading.Lock()

    def version(self, slot: int) -> int:
        """The trainer's number of the policy in a slot."""
        return int(self._known[slot, 0])

    # -- the link ----------------------------------------------------------------------------------

    def free_slot(self) -> int:
        """One that nobody uses."""
        in_use = {word % self._count for word in self._words}
        return next(slot for slot in range(self._count) if slot not in in_use)

    def publish(self, slot: int, version: int, published_at_s: float, received_at: float) -> int:
        """What is in the slot is the newest policy from now on; returns the word that names it."""
        ready = self._words[_READY]
        word = (ready // self._count + 1) * self._count + slot
        self._known[slot] = version, published_at_s, received_at
        self._words[_BEFORE] = ready
        self._order()
        self._words[_READY] = word
        return word

    def holds(self, word: int) -> int | None:
        """The slot of a policy that is in use; None: its slot may hold another one by now."""
        return word % self._count if word in self._words else None

    # -- the other side ----------------------------------------------------------------------------

    def has_new(self, lane: int = 0) -> bool:
        """Whether there is a newer policy than the one that a lane took."""
        return self._words[_READY] != self._words[_TAKEN + lane]

    def take(self, lane: int = 0) -> PolicyInSlot:
        """Take the newest policy: its slot stays as it is until this lane takes another one."""
        while True:
            word = self._words[_TAKEN + lane] = self._words[_READY]
            self._order()
            # else its slot may have been chosen before the word was there
            if self._words[_READY] == word:
                slot = word % self._count
                version, published_at_s, received_at = self._known[slot].tolist()
                return PolicyInSlot(word, int(version), published_at_s, received_at, slot)

    def _order(self) -> None:
        """What was stored before is visible to other processors before what comes after."""
        with self._ordering:  # the lanes' threads may meet here
            self._barrier.release()
            self._barrier.acquire()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
