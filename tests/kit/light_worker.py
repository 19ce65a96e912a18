"""A worker's delivery alone: sample log, outbox and session, without environment or policy."""

from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.session.session import Session
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition

_TICK_S = 0.02
_PROMPT = OutboxOptions(max_age_s=0.0)


class LightDelivery:
    """Sample log and outbox. Implements `session.conversation.Role`.

    Attributes:
        made: number of samples appended.
        received, stored: the last entry that was confirmed as such.
        dismissed: why its samples are refused; empty if they are not.
        feeds: the feeds of all welcomes.
        policies: versions that have arrived completely.
    """

    def __init__(self, folder, options=_PROMPT, log_bytes=512 << 20):
        self.made = self.received = self.stored = 0
        self.dismissed = ""
        self.feeds = []
        self.policies = []
        self._folder = folder
        self.log = SampleLog(folder, log_bytes)
        incarnations = [self.log.incarnation]
        self.outbox = Outbox(folder.path, folder.worker, incarnations, folder.dead, options)

    def append(self, sample, observed_at_s=1e9):
        self.log.append(sample, observed_at_s, 0.0, 0.0, 0, 0)
        self.made += 1

    @property
    def kept(self):
        """Number of samples that are not stored yet."""
        return self.made - self.stored

    def close(self):
        self.log.close()
        self._folder.close()
        self.outbox.close()

    def on_welcome(self, welcome, is_new):
        is_another = welcome.feed != (self.feeds[-1] if self.feeds else 0)
        if is_another or is_new:
            self.outbox.send_again(to_another_trainer=is_another)
        self.feeds.append(welcome.feed)

    def on_message(self, message, body, data):
        if isinstance(message, m.Ack):
            self.outbox.on_ack(message)
            self.received, self.stored = (
                max(self.received, message.received),
                max(self.stored, message.stored),
            )
        elif isinstance(message, m.Dismissal):
            self.dismissed = message.reason
        elif isinstance(message, m.PolicyFrame) and message.index == message.frames - 1:
            self.policies.append(message.version)

    def on_tick(self, send, connected):
        self.log.refill()
        self.outbox.pump(send, connected and any(self.feeds[-1:]))
        return _TICK_S

    def pending(self):
        return self.outbox.pending()

    def beat(self):
        condition = Condition(unacknowledged_samples=self.outbox.unacknowledged_samples())
        return m.Beat(self._folder.worker, condition, max(self.policies, default=0))


class LightWorker(LightDelivery):
    """A `LightDelivery` with a session of its own, in a thread."""

    def __init__(
        self,
        folder,
        link,
        options=_PROMPT,
        log_bytes=512 << 20,
        spaces=None,
    ):
        super().__init__(folder, options, log_bytes)
        hello = m.Hello.of_this_process(
            "worker", folder.worker, self.log.incarnation, spaces=spaces
        )
        self.session = Session(link, self, hello)

    def close(self, flush_s=1.0):
        """Leave. In a private folder, samples that are not stored by then are lost."""
        self.session.close(flush_s)
        super().close()
