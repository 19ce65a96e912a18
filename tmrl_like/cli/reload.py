"""An experiment's file while training goes on: what may change changes with the next round."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tmrl_like.base.files import write_atomically
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.cli.changes import flat
from tmrl_like.config.components import argument_at
from tmrl_like.config.document import Document, read_document, stamp_of
from tmrl_like.config.loading import Overrides, as_yaml, open_experiment, settings_of
from tmrl_like.config.settings import PARTS
from tmrl_like.trainer.tuning import Tuning

log = logging.getLogger("tmrl_like.cli")

_LOOK_S = 1.0
_ENDS_WITHIN_S = 5.0
_MISSING = object()


class Reloading:
    """Watches the file, once a second, in a thread of its own while it is used as a context manager.

    A file that has changed is read when it looks the same for a second: it may be half-written. One that is wrong is
    one log line, and so is a key that needs a restart; the values in force stay. What the command line says stays over
    the file.
    """

    def __init__(self, document: Document, overrides: Overrides, tuning: Tuning, kept: Path) -> None:
        """Nothing is read before the file changes.

        Args:
            document: the experiment as it was read; one that is of no file is not watched.
            overrides: what the command line says.
            tuning: of the training.
            kept: the run's experiment.yaml, which is to say what is in force.
        """
        self._path, self._overrides = document.path, overrides
        self._stamp, self._is_new = document.stamp, False
        self._in_force = flat(document)
        self._asked: tuple[Future[None], dict[str, Any], dict[str, Any]] | None = None
        self._said: set[str] = set()
        self._closing = threading.Event()
        self._tuning, self._kept = tuning, kept

    def __enter__(self) -> Reloading:
        if self._stamp:
            self._thread = start_thread(self._watch, "tmrl-reload")
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        if self._stamp:
            self._thread.join(_ENDS_WITHIN_S)

    def _watch(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(_LOOK_S)
            try:
                self.look()
            except Exception as error:  # of code that the file names, too
                log.error("%s is not taken over, all values stay: %s", self._path, one_line(str(error)))

    def look(self) -> None:
        """Look once, and ask for what has changed; ConfigError: it is wrong, or what was asked for cannot be."""
        if self._asked is not None and self._asked[0].done():
            (done, values, written), self._asked = self._asked, None
            done.result()
            self._in_force = {k: v for k, v in (self._in_force | written).items() if v is not _MISSING}
            self._keep(values)
        assert self._path is not None
        stamp = stamp_of(self._path)
        if stamp != self._stamp:
            self._stamp, self._is_new = stamp, True
        elif self._is_new and self._asked is None:
            self._is_new = False
            self._compare(open_experiment(self._path, self._overrides))

    def _compare(self, document: Document) -> None:
        settings, written, values = settings_of(document), flat(document), {}
        names = sorted(written.keys() | self._in_force.keys())
        for name in [n for n in names if written.get(n, _MISSING) != self._in_force.get(n, _MISSING)]:
            part, _, argument = name.partition(".")
            value = None
            if name in self._tuning.given:
                is_code = part in PARTS
                value = argument_at(document, (part,), argument) if is_code else getattr(settings.trainer, argument)
            if value is not None or name == "trainer.sample_uses":
                values[name] = value
                continue
            said = f"{document.where(_keys(name))}: {name} has changed, which needs a restart"
            if said not in self._said:
                self._said.add(said)
                log.warning("%s", said)
        if values:
            of_file = {name: written.get(name, _MISSING) for name in values}
            self._asked = self._tuning.ask(values, given=True), values, of_file

    def _keep(self, values: dict[str, Any]) -> None:
        """Have the run's experiment.yaml say what is in force."""
        document = read_document(self._kept)
        for name, value in values.items():
            document.override(_keys(name), value)
            memory = document.data["memory"] if name == "agent.gamma" else None
            while isinstance(memory, dict):  # and the memory that it is made of
                arguments = memory.get("init_args", {})
                arguments |= {"gamma": value} if "gamma" in arguments else {}
                memory = arguments.get("memory")
        try:
            write_atomically(self._kept, as_yaml(document.data).encode())
        except OSError as error:
            log.error("%s does not say what is in force now: %s", self._kept, error)


def _keys(name: str) -> tuple[str, ...]:
    """Where "agent.lr_actor" or "trainer.steps" is written."""
    part, _, argument = name.partition(".")
    return (part, "init_args", argument) if part in PARTS else (part, argument)
