"""Dense networks compiled for the CPU: forward and backward passes, and an optimiser's updates of
their parameters.

For networks as small as those of robots, a training step in torch is mostly the overhead of calls.
Here it is a few calls of functions that numba compiles: matrix products from BLAS, and everything
between them in one sweep over memory. Arrays are filled in loops: with an assignment of one array
to another, numba compiles the text of its error as well, into all callers, which takes seconds.
Shape names: N networks side by side, B batch, I inputs, O outputs of a layer, P parameters.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803
from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numba import config, njit
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from tmrl_like.agents.acceleration import Flat
from tmrl_like.agents.batch_norm import BatchNormMLP
from tmrl_like.agents.ensemble import MLP
from tmrl_like.policies.layers import EPS, Floats

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("NUMBA_DISABLE_JIT is set")
importlib.import_module("scipy.linalg.cython_blas")  # which numba calls

log = logging.getLogger("tmrl_like.agents")

Function = TypeVar("Function", bound=Callable[..., object])
Integers: TypeAlias = NDArray[np.int64]

ZERO, ONE = np.float32(0.0), np.float32(1.0)
FIRST: Any = np.int64(0)  # a literal 0 would have functions compiled once more, for 0 alone
_SMALL = np.float32(EPS)
_SOURCES = sorted(Path(__file__).parent.glob("dense*.py"))


def compiled(function: Function, **more: Any) -> Function:
    """Compile a function when it is first called, and cache the result on disk where possible.

    NaN and infinity are preserved; sums may be taken in another order.
    """
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"reassoc", "contract", "nsz"},
        **more,
    }
    try:
        made = njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to write to
        return cast(Function, njit(**options)(function))
    kept = made._cache
    # these modules call each other's functions, so a change of one makes all caches stale
    kept._cache_file._source_stamp = [path.stat().st_mtime_ns for path in _SOURCES]
    for name in ("load_overload", "save_overload"):
        setattr(
            kept, name, functools.partial(_where_possible, kept.cache_path, getattr(kept, name))
        )
    return cast(Function, made)


def compiled_part(function: Function) -> Function:
    """Like `compiled`, for a function that only compiled functions call. This takes less time."""
    return compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _where_possible(folder: str, call: Callable[..., object], *args: object) -> object:
    try:
        return call(*args)
    except Exception:  # a full disk, or a damaged file, for which pickle raises errors of any kind
        return _say_that_nothing_is_kept(folder)


@functools.cache
def _say_that_nothing_is_kept(folder: str) -> None:
    log.warning(
        "compiled code cannot be kept in %s, so each start takes seconds: make room or remove it",
        folder,
    )


@contextlib.contextmanager
def threads_for_products() -> Iterator[None]:
    """Let matrix products use as many threads as torch, and torch's own operations one.

    BLAS ignores `torch.set_num_threads`, by which scripts set this number, and would take the core
    that a trainer leaves to a robot. Torch's threads spin for some milliseconds after an operation,
    on cores that BLAS then waits for.
    """
    threads = torch.get_num_threads()
    for library in _blas_libraries():
        if library.num_threads != threads:
            library.set_num_threads(threads)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@functools.cache
def _blas_libraries() -> list[Any]:
    """Return the BLAS libraries that are loaded, among them scipy's."""
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


class DenseNetwork(NamedTuple):
    """N networks of the same widths, as compiled functions take them. The parameters are those of
    the module.
    """

    parameters: Floats  # [P]
    gradients: Floats  # [P]
    # [L, 4], where in these the weights, biases, gains and offsets of each of L layers begin
    places: Integers
    widths: Integers  # [L + 1], of the inputs, and of the outputs of each layer
    num_networks: int
    normalizes: bool  # hidden layers have layer normalisation
    transposed: bool  # weights are [O, I]


class Layer(NamedTuple):
    """Views of the parameters, or gradients, of one layer of one network. Without normalisation
    there is neither gain nor offset: these then show other parameters.
    """

    weight: Floats  # [I, O] or [O, I]
    bias: Floats  # [O]
    gain: Floats  # [O]
    offset: Floats  # [O]


class Passed(NamedTuple):
    """What a forward pass keeps of one layer of one network for the backward pass."""

    y: Floats  # [B, O], the outputs
    normed: Floats  # [B, O], the normalised values; without normalisation y
    scale: Floats  # [B], 1 / standard deviation; without normalisation empty


def network_of(module: MLP | BatchNormMLP, flat: Flat) -> DenseNetwork:
    """Return the description of an actor or of critics, whose parameters are all in `flat`."""
    weights, biases, gains, offsets = module.tensors()
    places = np.zeros((len(weights), 4), np.int64)
    for kind, tensors in enumerate((weights, biases, gains, offsets)):
        places[: len(tensors), kind] = [tensor.storage_offset() for tensor in tensors]
    transposed = weights[0].ndim == 2
    size_in = weights[0].shape[-1 if transposed else -2]
    return DenseNetwork(
        parameters=flat.parameter.detach().numpy(),
        # not those of the weights, which are None after `module.zero_grad()`
        gradients=cast(torch.Tensor, flat.parameter.grad).numpy(),
        places=places,
        widths=np.array([size_in, *(bias.shape[-1] for bias in biases)]),
        num_networks=1 if transposed else len(weights[0]),
        normalizes=len(gains) > 0,
        transposed=transposed,
    )


@compiled_part
def layer_of(network: DenseNetwork, values: Floats, i: int, n: int) -> Layer:
    """Return layer i of network n, of parameters or of gradients."""
    size_in, size = network.widths[i], network.widths[i + 1]
    shape = (size, size_in) if network.transposed else (size_in, size)
    places = network.places[i]
    weight = places[0] + n * size_in * size
    bias, gain, offset = places[1] + n * size, places[2] + n * size, places[3] + n * size
    return Layer(
        values[weight : weight + size_in * size].reshape(shape),
        values[bias : bias + size],
        values[gain : gain + size],
        values[offset : offset + size],
    )


@compiled_part
def multiply(a: Floats, b: Floats, c: Floats, transpose_a: bool, transpose_b: bool) -> None:
    """Write the product a b to c, with a, b or neither transposed."""
    if transpose_a:
        np.dot(a.T, b, c)
    elif transpose_b:
        np.dot(a, b.T, c)
    else:
        np.dot(a, b, c)


@compiled_part
def forward(network: DenseNetwork, n: int, x_BI: Floats) -> list[Passed]:
    """Compute network n for contiguous inputs, layer by layer: linear, layer normalisation if there
    is one, ReLU; the last layer only linear.
    """
    last, inputs = len(network.places) - 1, x_BI
    passed = []
    for i in range(last + 1):
        layer = layer_of(network, network.parameters, i, n)
        y = np.empty((len(x_BI), len(layer.bias)), np.float32)
        multiply(inputs, layer.weight, y, False, network.transposed)
        normed, scale = y, layer.bias[:0]
        if network.normalizes and i < last:
            normed, scale = np.empty_like(y), np.empty(len(y), np.float32)
            _normalise(y, layer, normed, scale)
        else:
            add_bias(y, layer.bias, i < last)
        passed.append(Passed(y, normed, scale))
        inputs = y
    return passed


@compiled_part
def add_bias(y_BO: Floats, bias: Floats, rectify: bool) -> None:
    """Add the bias in place, and apply ReLU if `rectify`."""
    for b in range(y_BO.shape[0]):
        for o in range(y_BO.shape[1]):
            value = y_BO[b, o] + bias[o]
            y_BO[b, o] = ZERO if rectify and value < ZERO else value


@compiled_part
def _normalise(y_BO: Floats, layer: Layer, normed_BO: Floats, scale_B: Floats) -> None:
    """Apply bias, layer normalisation and ReLU to y in place; keep the normalised values and their
    scale, 1 / std.
    """
    _, bias, gain, offset = layer
    size = np.float32(y_BO.shape[1])
    for b in range(y_BO.shape[0]):
        mean = ZERO
        for o in range(y_BO.shape[1]):
            y_BO[b, o] += bias[o]
            mean += y_BO[b, o]
        mean /= size
        var = ZERO
        for o in range(y_BO.shape[1]):
            var += (y_BO[b, o] - mean) * (y_BO[b, o] - mean)
        scale_B[b] = ONE / np.sqrt(var / size + _SMALL)
        for o in range(y_BO.shape[1]):
            normed_BO[b, o] = (y_BO[b, o] - mean) * scale_B[b]
            value = normed_BO[b, o] * gain[o] + offset[o]
            y_BO[b, o] = value if not value < ZERO else ZERO


@compiled_part
def backward(
    network: DenseNetwork,
    n: int,
    passed: list[Passed],
    x_BI: Floats,
    d_y_BO: Floats,
    d_x_BK: Floats,
) -> None:
    """Backpropagate the gradient `d_y_BO` of the outputs of network n, after `forward`, to its
    parameters. If `d_x_BK` is not empty, backpropagate only to the last K inputs instead, which
    takes a network that is not transposed.
    """
    last, learns, d = len(network.places) - 1, d_x_BK.size == 0, d_y_BO
    for i in range(last, -1, -1):
        layer, gradient = (
            layer_of(network, network.parameters, i, n),
            layer_of(network, network.gradients, i, n),
        )
        inputs = passed[i - 1].y if i > 0 else x_BI
        if i < last:
            _back_through_relu(d, passed[i].y)
        if i < last and network.normalizes:
            _back_through_norm(d, layer, passed[i], gradient, learns)
        if learns:
            sum_rows(d, gradient.bias)
        if learns and network.transposed:
            multiply(d, inputs, gradient.weight, True, False)
        elif learns:
            multiply(inputs, d, gradient.weight, True, False)
        if i > 0:
            d_inputs = np.empty_like(inputs)
            multiply(d, layer.weight, d_inputs, False, not network.transposed)
            d = d_inputs
        elif not learns:
            multiply(d, layer.weight[-d_x_BK.shape[1] :], d_x_BK, False, True)


@compiled_part
def _back_through_relu(d_BO: Floats, y_BO: Floats) -> None:
    for b in range(d_BO.shape[0]):
        for o in range(d_BO.shape[1]):
            d_BO[b, o] = d_BO[b, o] if y_BO[b, o] > ZERO else ZERO


@compiled_part
def _back_through_norm(
    d_BO: Floats, layer: Layer, passed: Passed, gradient: Layer, learns: bool
) -> None:
    """Turn d, the gradient of the outputs of layer normalisation, into that of its inputs, in
    place. If `learns`, write the gradients of gain and offset.
    """
    size = np.float32(d_BO.shape[1])
    if learns:
        for o in range(len(gradient.gain)):
            gradient.gain[o], gradient.offset[o] = ZERO, ZERO
    for b in range(d_BO.shape[0]):
        d, normed, total, along = d_BO[b], passed.normed[b], ZERO, ZERO
        if learns:
            for o in range(len(d)):
                gradient.gain[o] += d[o] * normed[o]
                gradient.offset[o] += d[o]
        for o in range(len(d)):
            d[o] *= layer.gain[o]
            total += d[o]
            along += d[o] * normed[o]
        total /= size
        along /= size
        for o in range(len(d)):
            d[o] = passed.scale[b] * (d[o] - total - normed[o] * along)


@compiled_part
def sum_rows(d_BO: Floats, total: Floats) -> None:
    """Write the sum of each column to its total, [O]."""
    for o in range(len(total)):
        total[o] = ZERO
    for b in range(d_BO.shape[0]):
        for o in range(d_BO.shape[1]):
            total[o] += d_BO[b, o]


@compiled
def descend(
    parameter: Floats,
    gradient: Floats,
    moments: tuple[Floats, Floats],
    step: Floats,
    rates: tuple[float, float, float, float],
) -> None:
    """Do one step of Adam in place (Kingma and Ba, "Adam: A Method for Stochastic Optimization",
    2015, algorithm 1).

    Args:
        parameter: [P].
        gradient: [P].
        moments: the first and the second, [P] each.
        step: [], number of steps so far; increased by 1.
        rates: learning rate, beta 1, beta 2, epsilon.
    """
    mean, square = moments
    rate, beta1, beta2, epsilon = rates
    step[()] += ONE
    size = np.float32(rate / (1.0 - beta1 ** step[()]))
    unbiased = np.float32(1.0 / math.sqrt(1.0 - beta2 ** step[()]))
    new, new_square, kept = np.float32(1.0 - beta1), np.float32(1.0 - beta2), np.float32(beta2)
    small = np.float32(epsilon)
    for i in range(len(parameter)):
        mean[i] += new * (gradient[i] - mean[i])
        square[i] = kept * square[i] + new_square * gradient[i] * gradient[i]
        parameter[i] -= size * mean[i] / (np.sqrt(square[i]) * unbiased + small)
