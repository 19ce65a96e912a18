"""Twisted's reactor, in a daemon thread that the first link of the process starts. It cannot be stopped and started."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from twisted.internet import reactor as twisted_reactor
from twisted.internet import threads

from tmrl_like.errors import TransportError

_lock = threading.Lock()
_process = 0
"""Whose thread runs the reactor: a fork inherits the memory and not the thread."""


def running_reactor() -> Any:
    """Return Twisted's reactor, started if need be; one that the program runs itself will do.

    Raises:
        TransportError: this process was forked from one that uses tlspyo.
    """
    global _process
    with _lock:
        if _process not in (0, os.getpid()):
            raise TransportError(
                "this process was forked from one that uses the transport tlspyo: start processes with the method "
                '"spawn" of multiprocessing, or use the transport zmq'
            )
        if not _process:
            _process = os.getpid()
            logging.getLogger("tlspyo").setLevel(logging.CRITICAL)
            if not twisted_reactor.running:
                threading.Thread(target=twisted_reactor.run, args=(False,), name="tmrl-tlspyo", daemon=True).start()
    return twisted_reactor


def in_reactor(call: Callable[..., Any], *args: Any) -> Any:
    """Call a function in the reactor's thread, and return what it returns, or what its Deferred comes to."""
    return threads.blockingCallFromThread(running_reactor(), call, *args)
