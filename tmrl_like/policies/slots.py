"""Policies in memory that two processes share: the link fills a slot, the control loop acts with another.

A file that both map::

    head      words of 8 bytes: which policy is ready, which one was taken, and what is known of each
    input     float32 [R], the newest observation as the network sees it; R is 0 for an actor in torch
    slots     4 policies, each a safetensors file with the actor's parameters in the actor's order

A policy has a word that names it and its slot. The word of the newest one is written by the link, the word of the one
that was taken by the other side, each in one store: to take a policy is to store a word. The link fills a slot again
when it holds neither the policy that was taken nor one of the two newest, which may be about to be taken.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tmrl_like.base.files import map_file, reserve
from tmrl_like.policies.weight_file import Manifest, empty_file, read_file

FILE = "policies"
SLOTS = 4
_READY, _TAKEN, _VERSION, _PUBLISHED, _RECEIVED = range(0, 4 * SLOTS + 1, SLOTS)  # the last three have a word per slot
_BEFORE = _READY + 1  # what was ready before
_HEAD_BYTES = 256

_Array = np.ndarray[Any, Any]


class Policy(NamedTuple):
    """A policy in a slot."""

    word: int  # names it among all that were ever ready
    version: int  # the trainer's number
    published_at_s: float  # Unix time, by the trainer's clock
    received_at: float  # `time.perf_counter()`, which all processes of a machine share, when its last frame was here

    @property
    def slot(self) -> int:
        """Where it is."""
        return self.word % SLOTS


class PolicySlots:
    """The file, mapped by one of the two sides.

    Attributes:
        input: float32 [R], a view.
        slots: the bytes of each slot.
        header: what each policy begins with.
    """

    def __init__(self, folder: Path, manifest: Manifest, input_size: int = 0) -> None:
        """Map the file, which is made if it is not there.

        Args:
            folder: in memory that two processes share.
            manifest: of the actor.
            input_size: R.

        Raises:
            OSError: there is no room for it.
        """
        path, empty = folder / FILE, empty_file(manifest)
        self.header = bytes(empty[0])
        slot_bytes = sum(len(piece) for piece in empty)
        step = -(-slot_bytes // 64) * 64
        start = -(-(_HEAD_BYTES + 4 * input_size) // 64) * 64
        is_new = not path.exists()
        if is_new:
            reserve(path, start + SLOTS * step)
        self._map = memoryview(map_file(path))
        self._words = self._map[:_HEAD_BYTES].cast("Q")
        self._times = self._map[:_HEAD_BYTES].cast("d")
        self.input = np.frombuffer(self._map, np.float32, input_size, _HEAD_BYTES)
        self.slots = [self._map[at : at + slot_bytes] for at in range(start, start + SLOTS * step, step)]
        for slot in self.slots if is_new else ():
            slot[: len(self.header)] = self.header
        self._barrier = threading.Lock()  # nobody else uses it, see `_order`
        self._barrier.acquire()

    def parameters(self, slot: int) -> dict[str, _Array]:
        """Views of the parameters in a slot."""
        return {name: parameter.array() for name, parameter in read_file(self.slots[slot]).items()}

    def version(self, slot: int) -> int:
        """The trainer's number of the policy in a slot."""
        return self._words[_VERSION + slot]

    # -- the link ------------------------------------------------------------------------------------

    def free_slot(self) -> int:
        """One that nobody uses."""
        ready = self._words[_READY]
        in_use = {self._words[_TAKEN] % SLOTS, ready % SLOTS, self._words[_BEFORE] % SLOTS}
        return next(slot for slot in range(SLOTS) if slot not in in_use)

    def publish(self, slot: int, version: int, published_at_s: float, received_at: float) -> int:
        """What is in the slot is the newest policy from now on; returns the word that names it."""
        ready = self._words[_READY]
        word = (ready // SLOTS + 1) * SLOTS + slot
        self._words[_VERSION + slot] = version
        self._times[_PUBLISHED + slot] = published_at_s
        self._times[_RECEIVED + slot] = received_at
        self._words[_BEFORE] = ready
        self._order()
        self._words[_READY] = word
        return word

    # -- the other side ------------------------------------------------------------------------------

    @property
    def newest(self) -> int:
        """The word of the newest policy; 0: there is none yet."""
        return self._words[_READY]

    @property
    def published(self) -> int:
        """How many policies have been ready so far."""
        return self._words[_READY] // SLOTS

    @property
    def taken(self) -> int:
        """The word of the policy that was taken; 0: none was."""
        return self._words[_TAKEN]

    def take(self) -> Policy:
        """Take the newest policy: its slot stays as it is until another one is taken."""
        while True:
            word = self._words[_TAKEN] = self._words[_READY]
            self._order()
            if self._words[_READY] == word:  # else its slot may have been chosen before the word was there
                slot = word % SLOTS
                return Policy(
                    word, self._words[_VERSION + slot], self._times[_PUBLISHED + slot], self._times[_RECEIVED + slot]
                )

    def _order(self) -> None:
        """What was stored before is visible to other processors before what comes after."""
        self._barrier.release()
        self._barrier.acquire()
