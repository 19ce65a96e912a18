"""A worker without an environment, for `relay.py` and `fleet.py`: what is appended to its log goes out."""

from __future__ import annotations

from collections.abc import Callable

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition


class Sending:
    """Sample log, outbox, and the `Role` that sends.

    Attributes:
        log: where samples are appended.
        is_open: whether anything leaves.
        feed: the trainer's; 0: there is none.
        version: of the newest policy that came.
        sent_bytes: of all messages.
    """

    def __init__(self, name: str, options: OutboxOptions) -> None:
        """Make a private folder in shared memory."""
        self._folder = open_folder(None, name)
        self.log = SampleLog(self._folder, options.max_bytes)
        self.outbox = Outbox(self._folder.path, name, [self.log.incarnation], options)
        self.is_open = True
        self.feed = self.version = self.sent_bytes = 0

    def on_welcome(self, welcome: m.Welcome, is_new: bool) -> None:
        self.outbox.send_again(welcome.feed != self.feed)
        self.feed = welcome.feed

    def on_message(self, message: m.AnyMessage, body: memoryview, data: bytes | memoryview) -> None:
        if isinstance(message, m.Ack):
            self.outbox.on_ack(message)
        elif isinstance(message, m.PolicyFrame):
            self.version = message.version

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        def count(data: bytes) -> bool:
            is_sent = send(data)
            self.sent_bytes += len(data) * is_sent
            return is_sent

        self.outbox.pump(count, connected and self.feed != 0 and self.is_open)
        return 0.01  # as a worker's link

    def pending(self) -> bool:
        return False

    def beat(self) -> m.Beat:
        condition = Condition(policy_version=self.version, env_steps=self.log.entries)
        return m.Beat(self.outbox.worker, condition, self.version)

    def close(self) -> None:
        """Remove what is there."""
        self.log.close()
        self._folder.close()
        self.outbox.close()
