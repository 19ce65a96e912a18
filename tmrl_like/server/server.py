"""The server: a small process in the middle that all workers and the trainer can reach."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import tmrl_like.config.config_constants as cfg
from tmrl_like.base.budgets import Bucket
from tmrl_like.base.options import with_given
from tmrl_like.base.script import close_at_exit
from tmrl_like.base.threads import start_thread
from tmrl_like.engine.options import EngineOptions
from tmrl_like.errors import OversizeError, TmrlLikeError
from tmrl_like.server.options import ServerOptions
from tmrl_like.server.relay import Counters, Relay
from tmrl_like.transport import KeyFolder, TransportOptions, listen

log = logging.getLogger("tmrl_like.server")

_BEAT_S = 1.0
_TICK_S = 0.25
_BUSY_S = 0.002
_SHORTAGE_AGAIN_S = 60.0
_MAX_WAITING_BYTES = 512 << 20  # for the trainer: in the relay plus the transport's queue


class Server:
    """Relays compressed samples from workers to the trainer, and weights back.

    A server listens as soon as it is constructed and works in its own thread; the constructor
    returns at once. Workers and the trainer may connect, leave and reconnect in any order. Use the
    server as a context manager or call `close`; if it is still open when the script ends, it is
    closed then.
    """

    def __init__(
        self,
        port: int | None = None,
        min_samples_per_server_packet: int | None = None,
        *,
        host: str = "0.0.0.0",
        max_workers: int | None = None,
        transport: str = "zmq",
        keys_dir: str | Path | None = None,
        options: ServerOptions | None = None,
        limits: TransportOptions | None = None,
        engine: EngineOptions | None = None,
    ) -> None:
        """Start listening.

        Args:
            port: TCP port; 0: any free port (see `address`); None: `cfg.PORT`, which is 7790 unless
                set.
            min_samples_per_server_packet: overrides the value in `options`.
            host: local address to listen on; "0.0.0.0": all IPv4 addresses of this machine; "::":
                those of IPv6, too; "127.0.0.1": connections from this machine only.
            max_workers: overrides the value in `options`.
            transport: "zmq", "tlspyo" or "inproc".
            keys_dir: the folder with the keys, which are created if there are none; None:
                `cfg.KEYS_FOLDER`.
            options: options of the server.
            limits: limits of the transport.
            engine: the engine that receives the samples and provides the policies, instead of a
                trainer that connects here.

        Raises:
            AddressInUseError: the port is taken.
            CredentialsError: the keys cannot be read or made, or the engine's credentials cannot be
                read.
            MissingExtraError: an engine is given, and the packages for it are not installed.
            ConfigError: an argument is out of range.
            ShortageError: the system has no threads for the server.
        """
        options = with_given(
            ServerOptions,
            options,
            min_samples_per_server_packet=min_samples_per_server_packet,
            max_workers=max_workers,
        )
        limits = limits or TransportOptions()
        port = cfg.PORT if port is None else port
        # peers that hear nothing for `silent_after_s` dial again
        self._beat_s = min(_BEAT_S, limits.silent_after_s / 4)
        self._failure: BaseException | None = None
        self._shortages = Bucket(1, 1 / _SHORTAGE_AGAIN_S)  # limits log lines
        self._stopping = threading.Event()
        self._ended = threading.Event()
        keys = KeyFolder(Path(keys_dir or cfg.KEYS_FOLDER))
        self._link = listen(transport, host, port, keys, limits)
        try:
            if engine is not None:  # it sits in the trainer's seat
                from tmrl_like.engine.gateway import Gateway

                self._link = Gateway(self._link, engine)
            self._relay = Relay(
                self._link,
                options.min_samples_per_server_packet,
                options.max_workers,
                limits.silent_after_s,
                max_waiting_bytes=max(
                    limits.max_message_bytes, _MAX_WAITING_BYTES - limits.queue_bytes
                ),
            )
            start_thread(self._run, "tmrl-server")
        except TmrlLikeError:
            self._link.close()
            raise
        close_at_exit(self, turn=2)
        log.info("listening on %s port %d (%s)", *self.address, transport)

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that the server listens on."""
        return self._link.address

    @property
    def counters(self) -> Counters:
        """Counts of what the server has relayed, refused and dropped so far."""
        return self._relay.counters

    def workers(self) -> list[str]:
        """Return the names of the connected workers."""
        return list(self._relay.workers)

    def has_trainer(self) -> bool:
        """Whether a trainer is connected, or an engine in its place."""
        return self._relay.trainer is not None

    def serve_forever(self) -> None:
        """Wait until `close` is called or the server fails.

        Raises:
            Exception: the error that ended the server's thread.
        """
        # not Thread.join: after a Ctrl-C inside it, the thread would seem to have ended
        while not self._ended.wait(0.2):
            pass
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop the server and free the port. Calling it twice is fine."""
        self._stopping.set()
        self._link.wake()
        self._ended.wait(5.0)
        self._link.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._failure = error
            if isinstance(error, MemoryError):
                log.error("the server ends: no memory is left; start it again, nothing is lost")
            elif not isinstance(error, TmrlLikeError):  # whose message alone is enough
                log.exception("the server failed")
        finally:
            self._ended.set()

    def _serve(self) -> None:
        flush_at = tick_at = beat_at = time.monotonic()
        while not self._stopping.is_set():
            self._handle_next(max(0.0, min(flush_at, beat_at) - time.monotonic()))
            now = time.monotonic()
            if now >= flush_at:
                flush_at = now + (_TICK_S if self._relay.flush() else _BUSY_S)
            if now >= tick_at:
                tick_at = now + _TICK_S
                self._relay.tick(now)
            if now >= beat_at:
                beat_at = now + self._beat_s
                self._relay.beat()

    def _handle_next(self, timeout_s: float) -> None:
        """Wait for a message and handle it.

        If there is no memory for it, the message is dropped; workers send again what is not
        acknowledged. An answer that is above the limit of a message is dropped, too.
        """
        sender = "somebody"
        try:
            incoming = self._link.receive(timeout_s)
            if incoming is not None:
                sender = incoming.identity.name
                self._relay.handle(incoming, time.monotonic())
        except MemoryError:
            if self._shortages.take(1, time.monotonic()):
                log.error("no memory is left for a message of %s: it is dropped", sender)
        except OversizeError as error:
            if self._shortages.take(1, time.monotonic()):
                log.error("the answer to %s is dropped: %s", sender, error)
