"""Twisted's reactor, in a daemon thread that the first link of the process starts. It cannot be stopped and started."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet import reactor as twisted_reactor
from twisted.internet import threads

from tmrl_like.base.threads import start_thread
from tmrl_like.errors import TransportError

_lock = threading.Lock()
_process = 0
"""Whose thread runs the reactor: a fork inherits the memory and not the thread."""


def running_reactor() -> Any:
    """Twisted's reactor, started if need be, or the program's own.

    Raises:
        TransportError: it was stopped, or this process was forked from one that uses it.
        ShortageError: there is no thread for it.
    """
    global _process
    with _lock:
        if not _process:
            logging.getLogger("tlspyo").setLevel(logging.CRITICAL)
            if not twisted_reactor.running:
                started = threading.Event()
                twisted_reactor.callWhenRunning(started.set)
                start_thread(partial(twisted_reactor.run, False), "tmrl-tlspyo")
                started.wait()
            _process = os.getpid()
        if _process != os.getpid():
            raise TransportError(
                "this process was forked from one that uses the transport tlspyo: start processes with the method "
                '"spawn" of multiprocessing, or use the transport zmq'
            )
        if not twisted_reactor.running:
            raise TransportError("this program has stopped Twisted's reactor, which cannot be started again")
    return twisted_reactor


def in_reactor(call: Callable[..., Any], *args: Any) -> Any:
    """Call a function in the reactor's thread, and return what it returns, or what its Deferred comes to."""
    return threads.blockingCallFromThread(running_reactor(), call, *args)
