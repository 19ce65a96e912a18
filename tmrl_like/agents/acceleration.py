"""torch.compile and CUDA graphs around a training step, for every agent in one place.

A step is a function of a batch and a flag; it changes parameters in place and returns tensors. It must not read
tensors back (`.item()`), and what it decides in Python must follow from the flag and from `fingerprint`.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from tmrl_like.errors import ConfigError
from tmrl_like.types import Batch

log = logging.getLogger("tmrl_like.trainer")

Metrics: TypeAlias = dict[str, Tensor]
Step: TypeAlias = Callable[[Batch, bool], Metrics]

MODES = ("off", "auto", "compile", "graph", "compile+graph")
_MEASURED = ("off", "graph")  # compiling takes longer than measuring
_WARM_UPS = 3  # steps before a capture: they make optimiser state and choose algorithms
_MEASURED_STEPS = 30
_MAX_GRAPHS = 8


class GraphBackend(Protocol):
    """What makes a graph of a call on a device."""

    def warm_up(self, call: Callable[[], Metrics]) -> Metrics:
        """Run the call as a capture will, without capturing it."""

    def capture(self, call: Callable[[], Metrics]) -> Callable[[], Metrics]:
        """Record the call without running it; what is returned runs it, always with the same result tensors."""


def accelerate(
    step: Step, mode: str, device: str, fingerprint: Callable[[], Any], networks: Sequence[nn.Module] = ()
) -> Step:
    """Wrap a training step.

    Args:
        step: what to speed up.
        mode: "off"; "compile": torch.compile for the networks; "graph": a CUDA graph of the whole step;
            "compile+graph": both; "auto": on CUDA a graph if it is faster in the first steps, elsewhere off.
        device: where the step runs.
        fingerprint: what the step's Python code reads beside its arguments (learning rates, identities of state
            tensors): graphs are made anew when it changes.
        networks: what "compile" compiles, in place; their forward passes.

    Raises:
        ConfigError: no such mode, or a graph on a device that has none.
    """
    if mode not in MODES:
        raise ConfigError(f"acceleration={mode!r}, expected {', '.join(map(repr, MODES))}")
    cuda = torch.device(device).type == "cuda"
    if "graph" in mode and not cuda:
        raise ConfigError(f"acceleration={mode!r} needs device cuda; this agent is on {device!r}: use 'auto' or 'off'")
    if mode == "off" or (mode == "auto" and not cuda):
        return step
    if mode == "auto":
        candidates = {name: accelerate(step, name, device, fingerprint) for name in _MEASURED}
        return Fastest(candidates, lambda: torch.cuda.synchronize(device))
    if "compile" in mode:
        for network in networks:
            network.compile()
    return Graphed(step, CudaGraphs(), fingerprint) if "graph" in mode else step


class Graphed:
    """A step replayed from graphs: one for each flag and form of batch.

    A replay reads its batch from fixed tensors, so each batch is copied there; its metrics are copied out.
    """

    def __init__(self, step: Step, backend: GraphBackend, fingerprint: Callable[[], Any]) -> None:
        self._step = step
        self._backend = backend
        self._fingerprint = fingerprint
        self._seen: Any = None
        self._warm_ups: dict[Any, int] = {}
        self._graphs: dict[Any, tuple[list[Tensor], Callable[[], Metrics]]] = {}

    def __call__(self, batch: Batch, flag: bool) -> Metrics:
        """Do the step."""
        self._forget_if_changed()
        leaves = tensors_of(batch)
        key = flag, batch.drawn is None, _form(batch), tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._graphs:
            if self._warm_ups.get(key, 0) < _WARM_UPS or len(self._graphs) >= _MAX_GRAPHS:
                self._warm_ups[key] = self._warm_ups.get(key, 0) + 1
                return self._backend.warm_up(lambda: self._step(batch, flag))
            static = _map(batch, Tensor.clone)
            self._graphs[key] = tensors_of(static), self._backend.capture(lambda: self._step(static, flag))
        targets, replay = self._graphs[key]
        torch._foreach_copy_(targets, leaves)
        return {name: value.clone() for name, value in replay().items()}

    def _forget_if_changed(self) -> None:
        seen = self._fingerprint()
        if seen != self._seen:
            self._seen = seen
            self._graphs.clear()
            self._warm_ups.clear()


class CudaGraphs:
    """`GraphBackend` by torch's CUDA graphs."""

    def warm_up(self, call: Callable[[], Metrics]) -> Metrics:
        """Run the call on a stream of its own, as a capture does."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            metrics = call()
        torch.cuda.current_stream().wait_stream(stream)
        return metrics

    def capture(self, call: Callable[[], Metrics]) -> Callable[[], Metrics]:
        """Record the call into a graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            metrics = call()

        def replay() -> Metrics:
            graph.replay()
            return metrics

        return replay


class Fastest:
    """Tries candidates in turn, each a true training step, then stays with the fastest."""

    def __init__(
        self,
        candidates: Mapping[str, Step],
        synchronize: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._candidates = dict(candidates)
        self._synchronize = synchronize
        self._clock = clock
        self._took_s: dict[str, list[float]] = {name: [] for name in candidates}
        self.chosen: str | None = None

    def __call__(self, batch: Batch, flag: bool) -> Metrics:
        """Do the step."""
        if self.chosen is not None:
            return self._candidates[self.chosen](batch, flag)
        name = min(self._took_s, key=lambda name: len(self._took_s[name]))
        self._synchronize()
        started = self._clock()
        metrics = self._candidates[name](batch, flag)
        self._synchronize()
        self._took_s[name].append(self._clock() - started)
        if all(len(took) >= 2 * _MEASURED_STEPS for took in self._took_s.values()):
            self._choose()
        return metrics

    def _choose(self) -> None:
        medians = {name: statistics.median(took[_MEASURED_STEPS:]) for name, took in self._took_s.items()}
        self.chosen = min(medians, key=lambda name: medians[name])
        told = ", ".join(f"{name} {took * 1e3:.2f} ms" for name, took in medians.items())
        log.info("acceleration: %s (a training step takes: %s)", self.chosen, told)


def tensors_of(batch: Batch) -> list[Tensor]:
    """All tensors of a batch, in a fixed order."""
    found: list[Tensor] = []
    _map(batch, lambda leaf: found.append(leaf) or leaf)  # type: ignore[func-returns-value]
    return found


def _form(value: Any) -> Any:
    """The structure of a batch, to compare."""
    if isinstance(value, Batch):
        return _form((*value, value.discount, value.weight))
    if isinstance(value, tuple | list):
        return tuple(_form(part) for part in value)
    if isinstance(value, Mapping):
        return tuple((key, _form(part)) for key, part in value.items())
    return value is None


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Batch):
        extra = {"discount": _map(value.discount, change), "weight": _map(value.weight, change), "drawn": value.drawn}
        return Batch(*(_map(part, change) for part in value), **extra)
    if isinstance(value, tuple | list):
        return type(value)(_map(part, change) for part in value)
    if isinstance(value, Mapping):
        return {key: _map(part, change) for key, part in value.items()}
    return value
