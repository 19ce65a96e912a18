"""A conversation that runs in its own thread, which owns the connection.

The methods of the role are called in that thread, beside the control loop or the training.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tmrl_like.base.threads import start_thread, wait_checking
from tmrl_like.errors import ShortageError, TmrlLikeError
from tmrl_like.session.conversation import Conversation, Role
from tmrl_like.transport.base import PeerLink
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.session")


class Session:
    """Keeps one peer connected. `check` raises any error that ended it.

    Attributes:
        conversation: the protocol; it belongs to the session's thread.
    """

    def __init__(
        self,
        link: PeerLink,
        role: Role,
        hello: m.Hello,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread and introduce the peer, without waiting for the server.

        Args:
            link: to the server; closed by `close`.
            role: handles the messages.
            hello: introduces the peer.
            clock: monotonic clock, in seconds.

        Raises:
            ShortageError: the system has no thread for it; the link is closed.
        """
        self.conversation = Conversation(link, role, hello, clock)
        self._link = link
        self._stopping = threading.Event()
        self._flush_s = 0.0
        self._failure: BaseException | None = None
        try:
            self._thread = start_thread(self._run, f"tmrl-link-{hello.role}")
        except ShortageError:
            link.close()
            raise

    @property
    def connected(self) -> bool:
        """Whether the server has let this peer in and still answers."""
        return self.conversation.welcomed.is_set()

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait until the server has let this peer in, and return whether it has; raises like
        `check`.
        """
        return wait_checking(self.conversation.welcomed, timeout_s, self.check)

    def check(self) -> None:
        """Raise the error that ended this session, if any.

        Raises:
            RefusedError, CredentialsError: the server refused this peer, or the key is wrong.
            Exception: any other error that ended the thread.
        """
        if self._failure is not None:
            raise self._failure

    @property
    def failed(self) -> bool:
        """Whether an error ended this session; `check` raises it."""
        return self._failure is not None

    def wake(self) -> None:
        """Make the session call `Role.on_tick` soon. Any thread."""
        self._link.wake()

    def close(self, flush_s: float = 1.0) -> None:
        """Send pending messages for at most `flush_s` seconds, say goodbye and close.

        Calling it twice is fine.
        """
        if not self._stopping.is_set():
            self._flush_s = flush_s
            self._stopping.set()
            self._link.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(flush_s + 2.0)

    def _run(self) -> None:
        try:
            wait_s = 0.0
            while not self._stopping.is_set():
                wait_s = self.conversation.turn(wait_s)
            self.conversation.end(self._flush_s)
        except BaseException as error:
            self._failure = error
            if isinstance(error, MemoryError):
                log.error("the connection's thread has no memory left")
            elif not isinstance(error, TmrlLikeError):
                log.error("the connection's thread failed", exc_info=error)
            elif not self._link.logs_itself:
                log.error("the connection to the server at %s ends: %s", self._link.where, error)
        finally:
            self.conversation.welcomed.clear()
            self._link.close()


def file_id(path: Path | None) -> str:
    """Return a hash that identifies a file on this machine without revealing its path."""
    if path is None:
        return ""
    text = f"{platform.node()}|{uuid.getnode()}|{path.resolve()}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
