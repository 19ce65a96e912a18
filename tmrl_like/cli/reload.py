"""Follows an experiment's file while training goes on, and applies its changes from the next
round.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

from tmrl_like.base.factories import argument_of
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.cli.changes import flat
from tmrl_like.config.components import resolve_component
from tmrl_like.config.document import Document, stamp_of
from tmrl_like.config.loading import Overrides, open_experiment, settings_of, written_out
from tmrl_like.config.settings import PARTS
from tmrl_like.trainer.tuning import Tuning

log = logging.getLogger("tmrl_like.cli")

LOOK_S = 1.0
_ENDS_WITHIN_S = 5.0


class Reloading:
    """Watches the file once a second, in a thread of its own, while it is used as a context
    manager.

    A changed file is read once it has stayed the same for a second, because it may be half-written.
    A wrong file, or a key that needs a restart, is logged in one line, and the current values stay.
    Values from the command line take precedence over the file.
    """

    def __init__(self, document: Document, overrides: Overrides, tuning: Tuning) -> None:
        """Prepare; nothing is read before the file changes.

        Args:
            document: the experiment as it was read; it is watched only if it comes from a file.
            overrides: the values from the command line.
            tuning: of the training.
        """
        self._path, self._overrides = document.path, overrides
        self._stamp, self._is_new = document.stamp, False
        self._written = flat(document.data)
        self._before = self._written  # what to go back to if the request is refused
        self._asked: Future[None] | None = None
        self._closing = threading.Event()
        self._tuning = tuning

    def __enter__(self) -> Reloading:
        if self._stamp:
            self._thread = start_thread(self._watch, "tmrl-reload")
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        if self._stamp:
            self._thread.join(_ENDS_WITHIN_S)

    def _watch(self) -> None:
        while not self._closing.wait(LOOK_S):
            try:
                self.look()
            except Exception as error:  # may come from code that the file names
                log.error(
                    "%s is not taken over, all values stay: %s", self._path, one_line(str(error))
                )

    def look(self) -> None:
        """Look at the file once, and request the changes found.

        Raises:
            ConfigError: the file is wrong, or an earlier request could not be applied.
        """
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            if asked.exception() is not None:
                self._written = self._before
            asked.result()
        assert self._path is not None
        stamp = stamp_of(self._path)
        if stamp != self._stamp:
            self._stamp, self._is_new = stamp, True
        elif self._is_new and self._asked is None:
            self._is_new = False
            self._compare(open_experiment(self._path, self._overrides))

    def _compare(self, document: Document) -> None:
        settings, (before, written) = settings_of(document), (self._written, flat(document.data))
        values: dict[str, Any] = {}
        for name in sorted(before.keys() | written.keys()):
            if before.get(name) == written.get(name):
                continue
            part, _, argument = name.partition(".")
            value = None
            if name in self._tuning.given and part in PARTS:
                value = argument_of(resolve_component(document, (part,), PARTS[part]), argument)
            elif name in self._tuning.given:
                value = getattr(settings.trainer, argument)
            if value is not None or name == "trainer.sample_uses":
                values[name] = value
            else:
                where = document.where(written_out(document.data, name.split(".")))
                log.warning("%s: %s has changed, which needs a restart", where, name)
        if values:
            self._asked = self._tuning.ask(values)
            self._asked.add_done_callback(partial(self._note, values))
        self._before, self._written = before, written

    def _note(self, values: dict[str, Any], done: Future[None]) -> None:
        """Note the values that are in force now, before a checkpoint can be written."""
        if not done.cancelled() and done.exception() is None:
            self._tuning.given |= values
