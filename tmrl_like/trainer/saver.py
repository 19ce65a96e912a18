"""Published policies on disk: writes the newest one and the run's store while training goes on."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from tmrl_like.base.files import link_atomically
from tmrl_like.base.threads import call_beside, thread_beside
from tmrl_like.errors import DivergedError, PolicyError
from tmrl_like.policies.policy_file import PolicyCard, write_policy
from tmrl_like.policies.policy_store import PolicyStore
from tmrl_like.policies.weights import WeightsCopy, refuse_diverged
from tmrl_like.trainer.options import TrainerOptions

log = logging.getLogger("tmrl_like.trainer")


class Publication(NamedTuple):
    """A policy that is being published."""

    version: int
    published_at_s: float
    weights: WeightsCopy
    training_steps: int = 0


@dataclass(eq=False)
class Saver:
    """Writes published policies in a thread of its own, so that training never waits for the
    disk.

    Attributes:
        path: file for the newest policy; None: it is not written.
        store: store for all policies; None: no store.
        card: the card of all files, without version, time and steps.
        options: what the store keeps.
        training_steps: returns the training steps done so far.
        waiting_bytes: if the disk is slower than training, the oldest waiting policies beyond this
            size are skipped.
    """

    path: Path | None
    store: PolicyStore | None
    card: PolicyCard
    options: TrainerOptions
    training_steps: Callable[[], int]
    waiting_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        """Start the thread."""
        self._tagged_at_s = time.monotonic()
        self._tagged_steps = self.training_steps()
        self._waiting: list[Publication] = []  # the first one is being written
        self._lock = threading.Lock()
        self._failed = False
        self._beside = thread_beside("tmrl-saver")

    @property
    def held(self) -> list[Publication]:
        """The publications whose weights are still needed."""
        with self._lock:
            return list(self._waiting)

    def save(self, publication: Publication) -> None:
        """Write a policy later, unless it is not finite. Training thread only."""
        publication = publication._replace(training_steps=self.training_steps())
        most = max(1, self.waiting_bytes // max(1, len(publication.weights.content.data)))
        with self._lock:
            self._waiting.append(publication)
            del self._waiting[1:-most]
        call_beside(self._beside, partial(self._keep, publication))

    def add_return(self, version: int, return_: float) -> None:
        """Note the return of a test episode of a policy. Training thread only."""
        if self.store is not None and math.isfinite(return_):
            call_beside(self._beside, partial(self._note, self.store, version, return_))

    def close(self) -> None:
        """Write the policies that are waiting, and end the thread. Calling it twice is fine."""
        self._beside.shutdown()

    def _keep(self, policy: Publication) -> None:
        if policy not in self.held:  # it was skipped
            return
        try:
            self._write(policy)
            self._failed = False
        except DivergedError:  # reported by the code that publishes it
            pass
        except Exception as error:  # of any kind: nobody waits for this thread's results
            if not self._failed:
                where = self.store.folder if self.store is not None else self.path
                why = error if str(error) else "no memory is left"
                log.error("cannot save the policy to %s: %s; training goes on", where, why)
            self._failed = True
        finally:
            with self._lock:
                self._waiting.remove(policy)

    def _write(self, policy: Publication) -> None:
        policy.weights.wait()
        refuse_diverged(policy.weights.tensors)
        version, published_at_s, weights, steps = policy
        card = msgspec.structs.replace(
            self.card, version=version, published_at_s=published_at_s, training_steps=steps
        )
        if self.store is not None:
            kept = self.store.add(weights.content, card)
            if self._wants_tag(steps):
                self.store.tag_steps(version, steps)
            if self.path is not None:
                link_atomically(kept, self.path)
            with contextlib.suppress(OSError):  # what stays is removed the next time
                self.store.collect(self.options.keep_policies)
        elif self.path is not None:
            write_policy(self.path, weights.content, card)

    def _wants_tag(self, steps: int) -> bool:
        """Whether all tag intervals that are set have passed since the last tag."""
        every_s = self.options.tag_every_s
        every_steps = self.options.tag_every_steps
        now = time.monotonic()
        if not (every_s or every_steps) or now - self._tagged_at_s < every_s:
            return False
        if every_steps and steps // every_steps == self._tagged_steps // every_steps:
            return False
        self._tagged_at_s = now
        self._tagged_steps = steps
        return True

    def _note(self, store: PolicyStore, version: int, return_: float) -> None:
        try:
            if best := store.add_return(version, return_):
                log.info(
                    "policy %d is the best by its test episodes so far: it is tagged `best`", best
                )
        except (OSError, PolicyError) as error:
            log.debug("the return of policy %d is not noted: %s", version, error)
