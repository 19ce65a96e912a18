"""The worker's end of its link, which lives in a process of its own, or in threads of this one."""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import tmrl_like.errors
from tmrl_like.base.processes import start_script
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import no_process, start_thread
from tmrl_like.errors import ShortageError, TransportError
from tmrl_like.wire.condition import Condition
from tmrl_like.worker.lane import Lane
from tmrl_like.worker.link_messages import (
    Failed,
    Fit,
    FromLink,
    Leave,
    LogLine,
    Published,
    Reader,
    Ready,
    Start,
    Status,
    ToLink,
    Trained,
    Writer,
)

log = logging.getLogger("tmrl_like.worker")

_READY_WITHIN_S = 120.0
_LEAVES_WITHIN_S = 3.0  # beside the time to send what is left
_SOON_S = 5.0  # a link that ends sooner than that after its start is started again later
_PAUSE_S = 1.0


class LinkClient(ABC):
    """Starts a link, and answers it.

    Attributes:
        connected: whether the server let this worker in and still answers.
        status: the newest word from the link.
    """

    def __init__(self, make_condition: Callable[[], Condition], lanes: Sequence[Lane]) -> None:
        """Put the parts together; `begin` starts it."""
        self.connected = threading.Event()
        self.status = Status(False, 0, 0, "")
        self._make_condition = make_condition
        self._lanes = lanes
        self._failure: BaseException | None = None

    @abstractmethod
    def begin(self, start: Start) -> None:
        """Start the link, and wait until it runs; not for the server."""

    @abstractmethod
    def tell(self, message: ToLink) -> None:
        """Let the link know. Any thread."""

    @abstractmethod
    def close(self, flush_s: float = 1.0) -> None:
        """Have the link send what is left (for at most `flush_s`), and end it. Twice is fine."""

    @property
    @abstractmethod
    def thread_id(self) -> int:
        """Native id of the thread in which the link's messages are answered."""

    def check(self) -> None:
        """Raise what ended the connection, if anything did; see `Session.check`."""
        if self._failure is not None:
            raise self._failure

    def _on_message(self, message: FromLink) -> None:
        try:
            if isinstance(message, Status):
                self.status = message
                if message.connected:
                    self.connected.set()
                else:
                    self.connected.clear()
                self.tell(self._make_condition())
                for lane in self._lanes:
                    if lane.samples is not None:
                        lane.samples.refill()
            elif isinstance(message, Published):
                words = [lane.intake.on_published() for lane in self._lanes]
                if words[0]:
                    self.tell(Fit(words[0]))
            elif isinstance(message, Trained):
                for lane in self._lanes:
                    if lane.samples is not None and lane.samples.incarnation == message.incarnation:
                        lane.note_trained(message.entry)
            elif isinstance(message, LogLine):
                logging.getLogger(message.logger).log(message.level, "%s", message.text)
            elif isinstance(message, Failed):
                self._fail(getattr(tmrl_like.errors, message.kind)(message.text))
        except Exception as error:  # of the user's actor
            log.exception("a policy cannot be taken")
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self.connected.clear()


class LinkThread(LinkClient):
    """A link in threads of this process."""

    def begin(self, start: Start) -> None:
        from tmrl_like.worker.link import Link

        self._is_made = threading.Event()  # before that, its threads may have something to say
        self._link = Link(start, self._on_message)
        self._is_made.set()
        try:
            self._thread = start_thread(self._link.serve, "tmrl-link")
        except ShortageError:
            self._link.leave(0.0)
            self._link.serve()
            raise

    def tell(self, message: ToLink) -> None:
        self._is_made.wait()
        self._link.on_message(message)

    def close(self, flush_s: float = 1.0) -> None:
        self.tell(Leave(flush_s, self._make_condition()))
        self._thread.join(flush_s + _LEAVES_WITHIN_S)

    @property
    def thread_id(self) -> int:
        return self._link.thread_id


class LinkProcess(LinkClient):
    """A link in a process of its own. When it is killed, another one goes on where it was.

    Attributes:
        process: the newest.
    """

    def __init__(
        self, make_condition: Callable[[], Condition], lanes: Sequence[Lane], process: subprocess.Popen[bytes]
    ) -> None:
        """As the base class; `process` is what `start_link_process` returned."""
        super().__init__(make_condition, lanes)
        self._leaving = threading.Event()
        self._answers = threading.Event()
        self._said: set[str] = set()
        self._use(process)

    def _use(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._write = Writer(process.stdin)
        self._started_at = time.monotonic()

    def begin(self, start: Start) -> None:
        self._start = start
        self.tell(start)
        self._thread = start_thread(self._answer, "tmrl-link")
        if not self._answers.wait(_READY_WITHIN_S):
            self._fail(TransportError(f"the link process does not answer within {_READY_WITHIN_S:.0f} s"))
        self.check()

    def tell(self, message: ToLink) -> None:
        self._write(message)

    def _answer(self) -> None:
        """Until `close` is called, or the link says what ended it."""
        while True:
            for message in Reader[FromLink](self.process.stdout, FromLink):
                if isinstance(message, Failed) and message.is_shortage and self._answers.is_set():
                    self._say_once(logging.ERROR, message.text)
                    self.process.kill()
                    continue
                self._on_message(message)
                if isinstance(message, Ready | Failed):
                    self._answers.set()
                    self._said.clear()
            code = self.process.wait()
            end_link_process(self.process)
            if self._leaving.is_set() or self._failure is not None:
                return
            self.connected.clear()
            if not self._answers.is_set():
                self._fail(TransportError(f"the link process ended with exit code {code} before it was ready"))
                self._answers.set()
                return
            line = f"the link process has ended (exit code {code}): the environment goes on, starting it again"
            self._say_once(logging.WARNING, line)
            if time.monotonic() - self._started_at < _SOON_S and self._leaving.wait(_PAUSE_S):
                return
            if not self._start_again():
                return
            self.tell(msgspec.structs.replace(self._start, condition=self._make_condition()))

    def _start_again(self) -> bool:
        """Start another one, as soon as the machine has what a process needs; False where nobody wants it any more."""
        while True:
            try:
                self._use(start_link_process())
                return True
            except (ShortageError, MemoryError) as error:
                self._say_once(logging.ERROR, f"{one_line(error)}: the environment goes on, trying again")
            if self._leaving.wait(_PAUSE_S):
                return False

    def _say_once(self, level: int, line: str) -> None:
        """Write a line that was not written since a link was ready."""
        if line not in self._said:
            self._said.add(line)
            log.log(level, "%s", line)

    def close(self, flush_s: float = 1.0) -> None:
        self._leaving.set()
        self.tell(Leave(flush_s, self._make_condition()))
        self._thread.join(flush_s + _LEAVES_WITHIN_S)
        end_link_process(self.process)

    @property
    def thread_id(self) -> int:
        return self._thread.native_id or 0


def start_link_process() -> subprocess.Popen[bytes]:
    """A link process that waits for its `Start`; ShortageError: the system gives none, or no descriptors for it."""
    script = Path(__file__).with_name("link_process.py")
    try:
        return start_script(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        raise no_process("of the link", error) from None


def end_link_process(process: subprocess.Popen[bytes]) -> None:
    """End it, if it has not ended. Twice is fine."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
