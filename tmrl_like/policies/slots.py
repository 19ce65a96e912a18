"""Policies in memory that two processes share: the link fills a slot, control loops act with others.

A file that both map::

    head      words of 8 bytes: which policy is ready, which one each lane took, and what is known of each
    input     float32 [R], the newest observation as the network sees it; R is 0 for an actor in torch
    slots     3 policies and one for each lane: safetensors files with the actor's parameters in the actor's order

A policy has a word that names it and its slot. The word of the newest one is written by the link, the word of the one
that a lane took by that lane, each in one store: to take a policy is to store a word. The link fills a slot again
when it holds neither a policy that was taken nor one of the two newest, which may be about to be taken.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tmrl_like.base.files import map_file, reserve
from tmrl_like.policies.weight_file import Manifest, layout_of, read_file

FILE = "policies"
_READY, _BEFORE, _SLOT_WORDS = range(3)  # the newest, the one before it; then three words for each slot: …
_VERSION, _PUBLISHED, _RECEIVED = range(3)

_Array = np.ndarray[Any, Any]


class Policy(NamedTuple):
    """A policy in a slot."""

    word: int  # names it among all that were ever ready
    version: int  # the trainer's number
    published_at_s: float  # Unix time, by the trainer's clock
    received_at: float  # `time.perf_counter()`, which all processes of a machine share, when its last frame was here
    slot: int  # where it is


class PolicySlots:
    """The file, mapped by one of the two sides.

    Attributes:
        input: float32 [R], a view.
        slots: the bytes of each slot.
        header: what each policy begins with.
    """

    def __init__(self, folder: Path, manifest: Manifest, input_size: int = 0, lanes: int = 1) -> None:
        """Map the file, which is made if it is not there.

        Args:
            folder: in memory that two processes share.
            manifest: of the actor.
            input_size: R.
            lanes: how many take policies, each by itself.

        Raises:
            OSError: there is no room for it.
        """
        path = folder / FILE
        self.header, slot_bytes = layout_of(manifest)
        step = -(-slot_bytes // 64) * 64
        self._count = lanes + 3
        self._taken = range(_SLOT_WORDS + 3 * self._count, _SLOT_WORDS + 3 * self._count + lanes)  # … and one per lane
        head_bytes = 8 * self._taken.stop
        start = -(-(head_bytes + 4 * input_size) // 64) * 64
        is_new = not path.exists()
        if is_new:
            reserve(path, start + self._count * step)
        self._map = memoryview(map_file(path))
        self._words = self._map[:head_bytes].cast("Q")
        self._times = self._map[:head_bytes].cast("d")
        self.input = np.frombuffer(self._map, np.float32, input_size, head_bytes)
        self.slots = [self._map[at : at + slot_bytes] for at in range(start, start + self._count * step, step)]
        for slot in self.slots if is_new else ():
            slot[: len(self.header)] = self.header
        self._barrier = threading.Lock()  # nobody else uses it, see `_order`
        self._barrier.acquire()
        self._ordering = threading.Lock()

    def parameters(self, slot: int) -> dict[str, _Array]:
        """Views of the parameters in a slot."""
        return {name: parameter.array() for name, parameter in read_file(self.slots[slot]).items()}

    def version(self, slot: int) -> int:
        """The trainer's number of the policy in a slot."""
        return self._words[_SLOT_WORDS + 3 * slot + _VERSION]

    # -- the link ------------------------------------------------------------------------------------

    def free_slot(self) -> int:
        """One that nobody uses."""
        in_use = {self._words[at] % self._count for at in (_READY, _BEFORE, *self._taken)}
        return next(slot for slot in range(self._count) if slot not in in_use)

    def publish(self, slot: int, version: int, published_at_s: float, received_at: float) -> int:
        """What is in the slot is the newest policy from now on; returns the word that names it."""
        ready, at = self._words[_READY], _SLOT_WORDS + 3 * slot
        word = (ready // self._count + 1) * self._count + slot
        self._words[at + _VERSION] = version
        self._times[at + _PUBLISHED] = published_at_s
        self._times[at + _RECEIVED] = received_at
        self._words[_BEFORE] = ready
        self._order()
        self._words[_READY] = word
        return word

    def holds(self, word: int) -> int | None:
        """The slot of a policy that is the newest, or was taken; None: its slot may hold another one by now."""
        is_held = word in (self._words[_READY], *(self._words[at] for at in self._taken))
        return word % self._count if is_held else None

    # -- the other side ------------------------------------------------------------------------------

    @property
    def newest(self) -> int:
        """The word of the newest policy; 0: there is none yet."""
        return self._words[_READY]

    def taken(self, lane: int = 0) -> int:
        """The word of the policy that a lane took; 0: it took none."""
        return self._words[self._taken[lane]]

    def take(self, lane: int = 0) -> Policy:
        """Take the newest policy: its slot stays as it is until this lane takes another one."""
        while True:
            word = self._words[self._taken[lane]] = self._words[_READY]
            self._order()
            if self._words[_READY] == word:  # else its slot may have been chosen before the word was there
                slot = word % self._count
                at = _SLOT_WORDS + 3 * slot
                times = self._times[at + _PUBLISHED], self._times[at + _RECEIVED]
                return Policy(word, self._words[at + _VERSION], *times, slot)

    def _order(self) -> None:
        """What was stored before is visible to other processors before what comes after."""
        with self._ordering:  # the lanes' threads may meet here
            self._barrier.release()
            self._barrier.acquire()
