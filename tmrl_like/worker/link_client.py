"""The worker's end of its link, which lives in a separate process, or in threads of this one."""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

import msgspec

import tmrl_like.errors
from tmrl_like.base.children import start_script
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import no_process, start_thread
from tmrl_like.errors import ShortageError, TmrlLikeError, TransportError
from tmrl_like.transport.addresses import written
from tmrl_like.worker.lane import Lane, condition_of
from tmrl_like.worker.link_messages import (
    FROM_LINK,
    Fit,
    FromLink,
    Leave,
    Left,
    LogLine,
    Published,
    Setup,
    Status,
    ToLink,
    Trained,
    message_writer,
    messages_in,
)

log = logging.getLogger("tmrl_like.worker")

_READY_WITHIN_S = 120.0
_LEAVES_WITHIN_S = 3.0  # in addition to the time to send what is left
_SOON_S = 5.0  # a link that ends sooner than this is started again after a pause
_PAUSE_S = 1.0


class LinkProcess:
    """A link in a separate process, which waits for its `Setup`.

    Attributes:
        process: the process that it runs in.
        messages: messages from the link, until it ends.
        send: sends a message to the link; does nothing if it has ended. Any thread.
    """

    def __init__(self) -> None:
        """Start the process. Raises ShortageError if the system provides no process, or no
        descriptors for it.
        """
        script = Path(__file__).with_name("link_process.py")
        try:
            self.process = start_script(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise no_process("of the link", error) from None
        to_link, from_link = self.process.stdin, self.process.stdout
        assert to_link is not None
        assert from_link is not None
        self._pipes = to_link, from_link
        self.messages: Iterator[FromLink] = messages_in(from_link, FROM_LINK)
        self.send: Callable[[ToLink], object] = message_writer(to_link)

    def end(self) -> str:
        """End the process, if it is still running; return how it ended. Calling it twice is
        fine.
        """
        self.process.kill()
        code = self.process.wait()
        for pipe in self._pipes:
            pipe.close()
        return f"the link process ended with exit code {code}"


class LinkThread:
    """A link in threads of this process, used like `LinkProcess`."""

    process = None

    def __init__(self) -> None:
        """Start the thread. Raises as `start_thread` does."""
        self._to_link: SimpleQueue[ToLink | None] = SimpleQueue()
        self._from_link: SimpleQueue[FromLink | None] = SimpleQueue()
        self.messages: Iterator[FromLink] = iter(self._from_link.get, None)
        self.send: Callable[[ToLink], object] = self._to_link.put
        start_thread(self._run, "tmrl-link-state")

    def _run(self) -> None:
        from tmrl_like.worker.link import run_link

        try:
            run_link(iter(self._to_link.get, None), self._from_link.put, threading.Event())
        finally:
            self._from_link.put(None)

    def end(self) -> str:
        """Have the link send what is left, if it is still running; return a line for messages.
        Calling it twice is fine.
        """
        self._to_link.put(None)
        return "the link's thread ended"


class LinkClient:
    """Runs a link, and handles its messages. A link that ends before it is asked to is replaced by
    another one, which continues its work.

    Attributes:
        connected: set while the server has let this worker in and answers.
        status: the worker's condition, as last reported by the link.
        server: address that the link dials, HOST:PORT.
    """

    def __init__(
        self,
        link: LinkProcess | LinkThread,
        setup: Setup,
        lanes: Sequence[Lane],
    ) -> None:
        """Wait until the link runs, but not for the server. `close` ends it.

        Args:
            link: a link that was just started.
            setup: what it is to do.
            lanes: the worker's lanes, which receive what the link reports.

        Raises:
            TmrlLikeError: the link cannot do its work.
        """
        self.connected = threading.Event()
        self.status = setup.condition
        self.server = written(*setup.server)
        self._link = link
        self._setup = setup
        self._lanes = lanes
        self._is_ready = threading.Event()  # also set if the link will never be ready
        # held while a link gets its setup, and while it is asked to leave
        self._changing = threading.Lock()
        self._leave: Leave | None = None
        self._leaving = threading.Event()
        self._is_over = False  # it has left as it was asked to, or something ended it for good
        self._said: set[str] = set()
        self._thread = start_thread(self._run, "tmrl-link")
        if not self._is_ready.wait(_READY_WITHIN_S):
            self._fail(
                TransportError(f"the link process does not answer within {_READY_WITHIN_S:.0f} s")
            )
        lanes[0].loop.check()

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The link's newest process; None: the link lives in this one."""
        return self._link.process

    def send(self, message: ToLink) -> None:
        """Send a message to the link. Any thread."""
        self._link.send(message)

    def close(self, flush_s: float = 1.0) -> None:
        """Have the link, or the one that is being started, send what is left within `flush_s`, and
        end it.

        Calling it twice is fine.
        """
        with self._changing:
            self._leave = Leave(flush_s)
            self._leaving.set()
            self.send(condition_of(self._lanes))
            self.send(self._leave)
        self._thread.join(flush_s + _LEAVES_WITHIN_S)
        self._is_over = True
        self._link.end()

    # -- the thread that answers -------------------------------------------------------------------

    def _run(self) -> None:
        """Run one link after another, until one has left as it was asked to, or reports what ended
        the connection.
        """
        link: LinkProcess | LinkThread | None = self._link
        while link is not None:
            started_at = time.monotonic()
            self._introduce(link)
            self._answer(link)
            how = link.end()
            self.connected.clear()
            if self._is_over:
                return
            if not self._is_ready.is_set():
                self._fail(TransportError(f"{how} before it was ready"))
                return
            self._say_once(logging.WARNING, f"{how}: the environment goes on, starting it again")
            if time.monotonic() - started_at < _SOON_S:
                self._leaving.wait(_PAUSE_S)
            link = self._start_again()

    def _introduce(self, link: LinkProcess | LinkThread) -> None:
        """Send a link its setup, before it gets any other message."""
        with self._changing:
            link.send(msgspec.structs.replace(self._setup, condition=condition_of(self._lanes)))
            self._link = link
            if self._leave is not None:
                link.send(self._leave)

    def _start_again(self) -> LinkProcess | LinkThread | None:
        """Start another link as soon as the machine has what it needs; return None if the client is
        closed first.
        """
        while True:
            try:
                return type(self._link)()
            except (ShortageError, MemoryError) as error:
                self._say_once(
                    logging.ERROR, f"{one_line(error)}: the environment goes on, trying again"
                )
            if self._leaving.wait(_PAUSE_S):
                return None

    def _answer(self, link: LinkProcess | LinkThread) -> None:
        """Handle a link's messages, until it has ended, or lacks something that another link may
        find.
        """
        for message in link.messages:
            try:
                self._on_message(message)
            except Exception as error:
                if isinstance(error, ShortageError) and self._is_ready.is_set():
                    self._say_once(logging.ERROR, str(error))
                    return
                if not isinstance(error, TmrlLikeError):  # from the user's actor
                    log.exception("a policy cannot be taken")
                self._fail(error)

    def _on_message(self, message: FromLink) -> None:
        if isinstance(message, Status):
            self._note_status(message)
        elif isinstance(message, Published):
            words = [lane.intake.on_published() for lane in self._lanes]
            if words[0]:
                self.send(Fit(words[0]))
        elif isinstance(message, Trained):
            for lane in self._lanes:
                lane.note_trained(message.incarnation, message.entry)
        elif isinstance(message, Left):
            if self._leaving.is_set():
                self._is_over = True
        elif isinstance(message, LogLine):
            logging.getLogger(message.logger).log(message.level, "%s", message.text)
        else:
            raise getattr(tmrl_like.errors, message.kind)(message.text)

    def _note_status(self, status: Status) -> None:
        self.status = status.condition
        if status.connected:
            self.connected.set()
        else:
            self.connected.clear()
        self._is_ready.set()
        self._said.clear()
        self.send(condition_of(self._lanes))
        for lane in self._lanes:
            lane.refill()

    def _fail(self, error: BaseException) -> None:
        self._is_over = True
        self.connected.clear()
        for lane in self._lanes:
            lane.loop.fail(error)
        self._is_ready.set()

    def _say_once(self, level: int, line: str) -> None:
        """Log a line that was not logged since a link was last ready."""
        if line not in self._said:
            self._said.add(line)
            log.log(level, "%s", line)
