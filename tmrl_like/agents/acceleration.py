"""Faster training steps with the same results, for every agent: flat parameters and CUDA graphs.

A step is a function of a batch and a flag that changes parameters in place and returns tensors. It
must not read tensors back (`.item()`), and its decisions in Python may depend only on the flag and
on the optimisers' options.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.types import Batch

Metrics: TypeAlias = dict[str, float | Tensor]
Step: TypeAlias = Callable[[Batch, bool], Metrics]

T = TypeVar("T")
log = logging.getLogger("tmrl_like.agents")

_WARM_UPS = 3  # steps before a capture, in which torch makes optimiser state and chooses algorithms
_MAX_GRAPHS = 8


def accelerate(
    step: Step,
    device: str,
    optimizers: Sequence[torch.optim.Adam] = (),
    numbers: Callable[[], tuple[float, ...]] = tuple,
) -> Step:
    """Return a step that replays the whole training step as a CUDA graph; on other devices, return
    the step itself.

    Args:
        step: the step to speed up.
        device: where the step runs.
        optimizers: each of one flat parameter. Graphs are recorded again when their
            options or state tensors change.
        numbers: returns the numbers, other than tensors, that `step` computes with. Graphs are
            recorded again when they change.
    """
    has_graphs = torch.device(device).type == "cuda"
    return Graphed(step, optimizers, numbers) if has_graphs else step


class Flat:
    """All trained parameters of a module, side by side in one flat parameter, so that one operation
    acts on all of them.

    The module's parameters become views of the flat parameter, and their gradients views of its
    gradient. This holds in a deep copy and after pickling as well.

    Attributes:
        parameter: the flat parameter, [number of values], with a gradient, for a `FlatAdam`.
    """

    def __init__(
        self,
        module: nn.Module,
        average_of: nn.Module | None = None,
        without: nn.Module | None = None,
        first: nn.Module | None = None,
    ) -> None:
        """Take the parameters that are trained; for a moving average, those whose counterparts in
        `average_of` are trained.

        The parameters of `without`, which other modules share, are left out; those of `first` come
        first.
        """
        shared = set() if without is None else set(without.parameters())
        pairs = zip(module.parameters(), (average_of or module).parameters(), strict=True)
        self._parts = [p for p, trained in pairs if trained.requires_grad and p not in shared]
        if first is not None:
            leading = set(first.parameters())
            self._parts.sort(key=lambda p: p not in leading)
        self.parameter = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in self._parts]))
        self._tie()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickled instance, whose parameters share no memory yet."""
        vars(self).update(state)
        self._tie()

    def _tie(self) -> None:
        self.parameter.grad = torch.zeros_like(self.parameter)
        first = 0
        places: list[tuple[nn.Parameter, Tensor]] = []
        for p in self._parts:
            mine = slice(first, first := first + p.numel())
            p.data = self.parameter.data[mine].view(p.shape)
            if p.requires_grad:
                p.grad = self.parameter.grad[mine].view(p.shape)
                places.append((p, p.grad))
        for p, place in places:
            keep = functools.partial(_keep, places, place)
            p.register_post_accumulate_grad_hook(keep)  # type: ignore[no-untyped-call]


def _keep(
    places: list[tuple[nn.Parameter, Tensor]], place: Tensor, parameter: nn.Parameter
) -> None:
    """Bring the gradients that `module.zero_grad()` separated from their places back there."""
    found = parameter.grad
    if found is not None and found is not place:
        parameter.grad = place
        place.copy_(found.detach())
        for other, its_place in places:
            if other.grad is None:  # it has none in this pass so far
                its_place.zero_()
                other.grad = its_place


class FlatAdam(torch.optim.Adam):
    """Adam of one flat parameter, for `adam_step`. A checkpoint changes none of its options but the
    learning rate.
    """

    _opt_called = True  # `adam_step` steps it: schedulers need not warn

    def __init__(
        self,
        parameter: nn.Parameter,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        """Make the state for a parameter."""
        beta1, beta2 = map(float, betas)  # torch takes no whole numbers
        super().__init__([parameter], lr, (beta1, beta2), eps, fused=True)
        self.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter.data),
            "exp_avg_sq": torch.zeros_like(parameter.data),
        }

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Set the gradients to 0; None would separate them from those of the module."""
        super().zero_grad(set_to_none=False)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load all but the options."""
        options = dict(self.param_groups[0])
        super().load_state_dict(state_dict)
        (group,) = self.param_groups
        group |= options | {"lr": group["lr"]}


def adam_step(optimizer: torch.optim.Adam) -> None:
    """Do what `optimizer.step()` does for one flat parameter, without its hooks and checks, which
    cost more than the step.

    State, `lr`, `betas` and `eps` are read where torch keeps them, so checkpoints and changes of
    `param_groups` work as usual.
    """
    (group,) = optimizer.param_groups
    (parameter,) = group["params"]
    state = optimizer.state[parameter]
    state["step"] += 1
    torch._fused_adam_(
        [parameter.data],
        [parameter.grad],
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [],
        [state["step"]],
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=0.0,
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


def backward(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Compute the gradients of a loss for an optimiser's step, in place of those of the last
    step.
    """
    optimizer.zero_grad(set_to_none=False)
    loss.backward()  # type: ignore[no-untyped-call]


def learning_rate_of(optimizer: str) -> property:
    """Return a property for the learning rate of the agent's optimiser of this name, kept where
    torch keeps it.
    """
    groups = operator.attrgetter(f"{optimizer}.param_groups")
    return property(
        lambda agent: float(groups(agent)[0]["lr"]),
        lambda agent, lr: groups(agent)[0].update(lr=lr),
    )


def compiled_or_none(make: Callable[[], T]) -> T | None:
    """Return the result of `make`, which computes gradients faster than autograd. Return None if
    numba is not installed, or cannot be used.
    """
    if importlib.util.find_spec("numba") is None:
        log.info(
            'a training step is up to five times as fast with numba: pip install "tmrl_like[fast]"'
        )
        return None
    try:
        return make()
    except Exception as error:  # a broken installation raises errors of any kind
        log.warning("training is slower than with numba, which cannot be used: %s", one_line(error))
        return None


class Graphed:
    """A step replayed from graphs: one for each flag, set of shapes and dtypes of a batch, and set
    of numbers that the step computes with.

    A replay reads its batch from fixed tensors, so each batch is copied there, and its metrics are
    copied out.
    """

    def __init__(
        self,
        step: Step,
        optimizers: Sequence[torch.optim.Adam],
        numbers: Callable[[], tuple[float, ...]],
    ) -> None:
        self._step = step
        self._optimizers = optimizers
        self._numbers = numbers
        self._warm_ups: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, tuple[list[Tensor], Callable[[], Metrics]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the graphs, which belong to these tensors of this process."""
        return vars(self) | {"_warm_ups": Counter(), "_graphs": {}}

    def __call__(self, batch: Batch, flag: bool) -> Metrics:
        places, leaves = zip(*leaves_of(batch), strict=True)
        form = flag, places, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if self._warm_ups[form] < _WARM_UPS:
            self._warm_ups[form] += 1
            return warm_up(lambda: self._step(batch, flag))
        key = form, self._numbers(), *map(_fixed_of, self._optimizers)
        if key not in self._graphs:
            if len(self._graphs) == _MAX_GRAPHS:
                self._graphs.clear()
            static = batch.map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)
            copies = [leaf for _, leaf in leaves_of(static)]
            self._graphs[key] = copies, capture(lambda: self._step(static, flag))
        targets, replay = self._graphs[key]
        torch._foreach_copy_(targets, leaves)
        return {name: torch.as_tensor(value).clone() for name, value in replay().items()}


def _fixed_of(optimizer: torch.optim.Adam) -> Hashable:
    """Return what a captured step has fixed: the options, and the tensors that hold the state."""
    (group,) = optimizer.param_groups
    (state,) = optimizer.state.values()
    return *(value for name, value in group.items() if name != "params"), state[
        "exp_avg"
    ].data_ptr()


def warm_up(call: Callable[[], Metrics]) -> Metrics:
    """Run the call on a stream of its own, as a capture does."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        metrics = call()
    torch.cuda.current_stream().wait_stream(stream)
    return metrics


def capture(call: Callable[[], Metrics]) -> Callable[[], Metrics]:
    """Record the call as a CUDA graph without running it. Return a function that runs it, and
    always returns the same result tensors.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        metrics = call()

    def replay() -> Metrics:
        graph.replay()
        return metrics

    return replay


def leaves_of(batch: Batch) -> Iterator[tuple[tree.Path, Tensor]]:
    """Iterate over all tensors of a batch with their places in it, in a fixed order."""
    return ((path, leaf) for path, leaf in tree.walk(batch.parts) if isinstance(leaf, Tensor))
