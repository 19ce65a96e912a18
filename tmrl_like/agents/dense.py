"""Dense networks compiled for the CPU: passes forward and back.

At the sizes that robots learn with, a training step in torch is mostly calls. Here it is a call of a function that
numba compiles: matrix products from BLAS, and what is between them in one sweep over memory.
Shape names: N networks side by side, M of them that are asked, B batch, I inputs, O outputs of a layer.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import llvmlite.binding  # type: ignore[import-untyped]
import numpy as np
import torch
from numba import config, njit, types
from numba.extending import get_cython_function_address
from numpy.typing import NDArray
from torch import Tensor, nn

from tmrl_like.agents.ensemble import MLP
from tmrl_like.policies.network import Floats

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("NUMBA_DISABLE_JIT is set")

log = logging.getLogger("tmrl_like.agents")

Function = TypeVar("Function", bound=Callable[..., Any])
Integers: TypeAlias = NDArray[np.int64]

_EPS = np.float32(1e-5)  # of torch's layer normalisation
ZERO, ONE = np.float32(0.0), np.float32(1.0)

_SOURCES = sorted(Path(__file__).parent.glob("dense*.py"))
_SGEMM = "tmrl_like_sgemm"
_letter, _int, _float = map(types.CPointer, (types.uint8, types.int32, types.float32))
_sgemm: Any = types.ExternalFunction(
    _SGEMM,
    types.void(
        *(_letter, _letter, _int, _int, _int),
        *(_float, _float, _int, _float, _int, _float, _float, _int),
    ),
)
"""BLAS: (transpose a, transpose b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc), all of them pointers."""


def compiled(function: Function) -> Function:
    """Compile when first called, and keep that on disk where possible.

    NaN and infinity stay what they are; sums may be taken in another order.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}
    try:
        made = njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to write to
        return cast(Function, njit(**options)(function))
    kept = made._cache
    kept._cache_file._source_stamp = [path.stat().st_mtime_ns for path in _SOURCES]  # they call each other's functions
    for name in ("load_overload", "save_overload"):
        setattr(kept, name, functools.partial(_where_possible, kept.cache_path, getattr(kept, name)))
    return cast(Function, made)


def _where_possible(folder: str, call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except Exception:  # a full disk, or a file that was damaged, with whatever pickle says of it
        return _say_that_nothing_is_kept(folder)


@functools.cache
def _say_that_nothing_is_kept(folder: str) -> None:
    log.warning("compiled code cannot be kept in %s, so each start takes seconds: make room or remove it", folder)


@functools.cache
def find_sgemm() -> None:
    """Say where BLAS is, before anything that multiplies is called: torch's, where it shows MKL's, else scipy's.

    MKL's takes 15 % less time.

    Raises:
        ImportError: there is none.
    """
    address = None
    with contextlib.suppress(StopIteration, OSError, AttributeError):
        library = next(Path(torch.__file__).parent.glob("lib/libtorch_cpu.so"))
        if torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
            address = ctypes.cast(ctypes.CDLL(str(library)).sgemm_, ctypes.c_void_p).value
    llvmlite.binding.add_symbol(_SGEMM, address or get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))


class Parameters(NamedTuple):
    """Those of each layer of N networks, or their gradients. Without normalisation gain and offset are [N, 0]."""

    weights: tuple[Floats, ...]  # [N, I, O], of an nn.Linear [1, O, I]
    biases: tuple[Floats, ...]  # [N, O]
    gains: tuple[Floats, ...]  # [N, O]
    offsets: tuple[Floats, ...]  # [N, O]


class Trace(NamedTuple):
    """What a pass leaves behind in each layer, for the way back."""

    y: tuple[Floats, ...]  # [N, B, O], the outputs
    d: tuple[Floats, ...]  # [N, B, O], the derivative of a loss by them
    normed: tuple[Floats, ...]  # [N, B, O], what is normalised
    scale: tuple[Floats, ...]  # [N, B], 1 / standard deviation


class Network(NamedTuple):
    """N networks of one form as compiled functions take them, for batches of one size.

    The parameters are those of the module. Of one that is not trained, there are no gradients to go back to.
    """

    parameters: Parameters
    gradients: Parameters
    trace: Trace
    transposed: bool  # weights are [O, I]


def network_of(module: MLP, num_rows: int) -> Network:
    """Make the description, and room for the trace, of an actor or of critics; ImportError: see `find_sgemm`."""
    find_sgemm()
    transposed, is_trained = isinstance(module.head, nn.Linear), all(p.requires_grad for p in module.head.parameters())
    parameters = _parameters_of(module, transposed, lambda values: values.detach())
    gradients = parameters
    if is_trained:
        gradients = _parameters_of(module, transposed, lambda values: cast(Tensor, values.grad))
    shapes = [(len(bias), num_rows, bias.shape[1]) for bias in parameters.biases]
    y, d, normed = (tuple(zeros(*shape) for shape in shapes) for _ in range(3))
    trace = Trace(y, d, normed, scale=tuple(zeros(*shape[:2]) for shape in shapes))
    return Network(parameters, gradients, trace, transposed)


def zeros(*shape: int) -> Floats:
    """float32."""
    return np.zeros(shape, np.float32)


def _parameters_of(module: MLP, transposed: bool, see: Callable[[Any], Tensor]) -> Parameters:
    """What there is to see of them."""
    linears = *module.hidden, module.head
    weights = [see(linear.weight).numpy() for linear in linears]
    n = 1 if transposed else len(weights[0])
    none = (zeros(n, 0),) * (len(linears) - len(module.norms))
    return Parameters(
        weights=tuple(weight.reshape(n, *weight.shape[-2:]) for weight in weights),
        biases=tuple(_rows(n, see(linear.bias)) for linear in linears),
        gains=tuple(_rows(n, see(norm.weight)) for norm in module.norms) + none,
        offsets=tuple(_rows(n, see(norm.bias)) for norm in module.norms) + none,
    )


def _rows(n: int, values: Tensor) -> Floats:
    rows: Floats = values.numpy().reshape(n, values.numel() // n)
    return rows


@compiled
def multiply(a: Floats, b: Floats, c: Floats, transpose_a: bool, transpose_b: bool) -> None:
    """Give c = a b, with each of them transposed or not. In Fortran's order of memory that is c^T = b^T a^T."""
    depth = a.shape[0] if transpose_a else a.shape[1]
    sizes = np.array([c.shape[1], c.shape[0], depth, b.shape[1], a.shape[1], c.shape[1]], np.int32)
    factors = np.array([1.0, 0.0], np.float32)
    letters = np.array([ord("T") if transpose_b else ord("N"), ord("T") if transpose_a else ord("N")], np.uint8)
    _sgemm(
        *(letters.ctypes, letters[1:].ctypes, sizes.ctypes, sizes[1:].ctypes, sizes[2:].ctypes),
        *(factors.ctypes, b.ctypes, sizes[3:].ctypes, a.ctypes, sizes[4:].ctypes),
        *(factors[1:].ctypes, c.ctypes, sizes[5:].ctypes),
    )


@compiled
def forward(network: Network, x: Floats, members: Integers) -> Floats:
    """Linear, layer normalisation where there is one, ReLU; the last layer linear.

    Args:
        network: its trace is filled, that of M networks.
        x: [B, I], contiguous: the input that all networks share.
        members: [M], which networks to ask.

    Returns:
        The outputs of these, [M, B, O]; they hold until the next call.
    """
    weights, biases, gains, offsets = network.parameters
    last = len(weights) - 1
    for m in range(len(members)):
        n, inputs = members[m], x
        for i in range(last + 1):
            y = network.trace.y[i][m]
            multiply(inputs, weights[i][n], y, False, network.transposed)
            if gains[i].shape[1] > 0:
                normed, scale = network.trace.normed[i][m], network.trace.scale[i][m]
                _normalise(y, biases[i][n], gains[i][n], offsets[i][n], normed, scale)
            else:
                _add_bias(y, biases[i][n], i < last)
            inputs = y
    return network.trace.y[-1][: len(members)]


@compiled
def _add_bias(y: Floats, bias: Floats, rectify: bool) -> None:
    """In place of y [B, O]: bias, and ReLU."""
    for b in range(y.shape[0]):
        for o in range(y.shape[1]):
            value = y[b, o] + bias[o]
            y[b, o] = ZERO if rectify and value < ZERO else value


@compiled
def _normalise(y: Floats, bias: Floats, gain: Floats, offset: Floats, normed: Floats, scale: Floats) -> None:
    """In place of y [B, O]: bias, layer normalisation, ReLU; what is normalised and its scale, 1 / std, are kept."""
    size = np.float32(y.shape[1])
    for b in range(y.shape[0]):
        mean = ZERO
        for o in range(y.shape[1]):
            y[b, o] += bias[o]
            mean += y[b, o]
        mean /= size
        var = ZERO
        for o in range(y.shape[1]):
            var += (y[b, o] - mean) * (y[b, o] - mean)
        scale[b] = ONE / np.sqrt(var / size + _EPS)
        for o in range(y.shape[1]):
            normed[b, o] = (y[b, o] - mean) * scale[b]
            value = normed[b, o] * gain[o] + offset[o]
            y[b, o] = value if not value < ZERO else ZERO


@compiled
def backward(network: Network, x: Floats, d_x: Floats) -> None:
    """After a `forward` of all networks with x: from the derivative by the outputs, which is to be in the trace, to
    d_x [N, B, I], or, where that is empty, to the gradients of the parameters.
    """
    weights, _, gains, _ = network.parameters
    d_weights, d_biases, d_gains, d_offsets = network.gradients
    ys, ds, normed, scale = network.trace
    learn, last = d_x.size == 0, len(weights) - 1
    for n in range(len(ys[0])):
        for i in range(last, -1, -1):
            inputs, d = x if i == 0 else ys[i - 1][n], ds[i][n]
            if i < last:
                _back_through_relu(d, ys[i][n])
            if gains[i].shape[1] > 0:
                if learn:
                    _learn_norm(d, normed[i][n], d_gains[i][n], d_offsets[i][n])
                _back_through_norm(d, gains[i][n], normed[i][n], scale[i][n])
            if learn and network.transposed:
                multiply(d, inputs, d_weights[i][n], True, False)
            elif learn:
                multiply(inputs, d, d_weights[i][n], True, False)
            if learn:
                sum_rows(d, d_biases[i][n])
            if i > 0:
                multiply(d, weights[i][n], ds[i - 1][n], False, not network.transposed)
            elif not learn:
                multiply(d, weights[i][n], d_x[n], False, not network.transposed)


@compiled
def _back_through_relu(d: Floats, y: Floats) -> None:
    for b in range(d.shape[0]):
        for o in range(d.shape[1]):
            d[b, o] = d[b, o] if y[b, o] > ZERO else ZERO


@compiled
def _learn_norm(d: Floats, normed: Floats, d_gain: Floats, d_offset: Floats) -> None:
    """The gradients of gain and offset [O]."""
    d_gain[:] = ZERO
    d_offset[:] = ZERO
    for b in range(d.shape[0]):
        for o in range(d.shape[1]):
            d_gain[o] += d[b, o] * normed[b, o]
            d_offset[o] += d[b, o]


@compiled
def _back_through_norm(d: Floats, gain: Floats, normed: Floats, scale: Floats) -> None:
    """In place of d [B, O], the derivative behind layer normalisation: that before it."""
    size = np.float32(d.shape[1])
    for b in range(d.shape[0]):
        total, along = ZERO, ZERO
        for o in range(d.shape[1]):
            d[b, o] *= gain[o]
            total += d[b, o]
            along += d[b, o] * normed[b, o]
        total /= size
        along /= size
        for o in range(d.shape[1]):
            d[b, o] = scale[b] * (d[b, o] - total - normed[b, o] * along)


@compiled
def sum_rows(d: Floats, total: Floats) -> None:
    """[B, O] -> [O]."""
    total[:] = ZERO
    for b in range(d.shape[0]):
        for o in range(d.shape[1]):
            total[o] += d[b, o]
