"""What the benchmarks share: medians, the machine, and the last line as one JSON object."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any


def cpu_s() -> float:
    """CPU time of this process with all its threads, in seconds."""
    return time.process_time()


def median(values: list[float]) -> float:
    return statistics.median(values)


def repeat(times: int, *calls: Callable[[], float]) -> list[list[float]]:
    """Call each of `calls` in turn, `times` times: A B A B …; returns each one's results."""
    results: list[list[float]] = [[] for _ in calls]
    for _ in range(times):
        for result, call in zip(results, calls, strict=True):
            result.append(call())
    return results


def make_room_for_links(links: int) -> None:
    """Let this process have so many links over zmq: descriptors for all, and one context, whose threads they share."""
    import zmq

    from tmrl_like.transport.base import raise_descriptor_limit

    class Shared(zmq.Context):  # type: ignore[type-arg]
        def term(self) -> None:
            """Each link ends the context that it made; here it is everybody's."""

    raise_descriptor_limit()
    shared = Shared()
    shared.max_sockets = 16 * links + 100
    zmq.Context = lambda: shared  # type: ignore[assignment,misc]


def finish(result: dict[str, Any]) -> None:
    """Print the result: readable lines, then one JSON object."""
    result = {"machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", **result}
    for name, value in result.items():
        print(f"{name:58} {_short(value)}")
    print(json.dumps(result))


def _short(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
