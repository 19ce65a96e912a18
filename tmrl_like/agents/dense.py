"""Dense networks compiled for the CPU: passes forward and back, and what an optimiser does with the gradients.

At the sizes that robots learn with, a training step in torch is mostly calls. Here a pass through a network is one call
of a function that numba compiles: matrix products from BLAS, and everything between them in one sweep over memory.
Shape names: N networks side by side, B batch, I inputs, O outputs of a layer.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import config, njit, types
from numba.extending import get_cython_function_address, intrinsic
from torch import nn

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("NUMBA_DISABLE_JIT is set")

log = logging.getLogger("tmrl_like.trainer")

_Array = np.ndarray[Any, Any]
_EPS = np.float32(1e-5)  # of torch's layer normalisation
ZERO, ONE = np.float32(0.0), np.float32(1.0)
_CHUNK = 2048


def compiled(function: Callable[..., Any]) -> Any:
    """Compile when first called, and keep that on disk where possible.

    NaN and infinity stay what they are; sums may be taken in another order.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}
    try:
        made = njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to write to
        return njit(**options)(function)
    kept = made._cache
    for name in ("load_overload", "save_overload"):
        setattr(kept, name, functools.partial(_where_possible, kept.cache_path, getattr(kept, name)))
    return made


def _where_possible(folder: str, call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except Exception:  # a full disk, or a file that was damaged, with whatever pickle says of it
        return _say_that_nothing_is_kept(folder)


@functools.cache
def _say_that_nothing_is_kept(folder: str) -> None:
    log.warning("compiled code cannot be kept in %s, so each start takes seconds: make room or remove it", folder)


@functools.cache
def blas() -> int:
    """Address of `sgemm`: torch's, if it shows one (MKL's takes 15 % less time), else scipy's.

    Raises:
        ImportError: there is none that multiplies.
    """
    with contextlib.suppress(StopIteration, OSError, AttributeError):
        library = ctypes.CDLL(str(next(Path(torch.__file__).parent.glob("lib/libtorch_cpu.so"))))
        address = ctypes.cast(library.sgemm_, ctypes.c_void_p).value
        if address and _multiplies(address):
            return address
    of_scipy = int(get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))
    if not _multiplies(of_scipy):
        raise ImportError("sgemm of scipy does not give the product of two matrices")
    return of_scipy


def _multiplies(sgemm: int) -> bool:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(3, 4)
    product = np.zeros((2, 4), np.float32)
    _multiply(a, b, product, False, False, sgemm)
    return np.array_equal(product, a @ b)


class Layer(NamedTuple):
    """A linear layer of N networks, and the layer normalisation behind it; or the gradients of both."""

    weight: _Array  # [N, I, O], or [N, O, I] where it is transposed
    bias: _Array  # [N, O]
    gain: _Array  # [N, O]; without layer normalisation [N, 0]
    offset: _Array  # as gain

    def map(self, change: Callable[[_Array], _Array]) -> Layer:
        """Apply `change` to each array."""
        return Layer(*map(change, self))


def layers_of(module: Any, gradients: bool = False) -> list[Layer]:
    """Views of the parameters of an `MLPActor` or `EnsembleMLP`, or of their gradients."""

    def see(parameter: Any, *shape: int) -> _Array:
        values: _Array = (parameter.grad if gradients else parameter.detach()).numpy()
        return values.reshape(shape)

    def layer(linear: Any, norm: Any) -> Layer:
        n, *form = (1, *linear.weight.shape) if isinstance(linear, nn.Linear) else linear.weight.shape
        norms = [np.zeros((n, 0), np.float32)] * 2 if norm is None else [see(norm.weight, n, -1), see(norm.bias, n, -1)]
        return Layer(see(linear.weight, n, *form), see(linear.bias, n, -1), *norms)

    norms = [*module.norms] or [None] * len(module.hidden)
    return [layer(*pair) for pair in zip((*module.hidden, module.head), (*norms, None), strict=True)]


class Dense:
    """A batch through N networks and back. What a call returns holds until the next one.

    Attributes:
        y: the output of the last `forward`, [N, B, O].
        d: the derivative of a loss by it, to be filled before `backward`; [N, B, O].
        d_x: the derivative by x that `backward` leaves, [N, B, I].
    """

    def __init__(self, layers: Sequence[Layer], x: _Array, gradients: Sequence[Layer] = (), transposed: bool = False):
        """Make the buffers.

        Args:
            layers: see `layers_of`.
            x: the input that all networks share, [B, I]; filled before each `forward`.
            gradients: where `backward` leaves those of the parameters, if it is to `learn`.
            transposed: whether the weights are, as torch's linear layers have them.
        """
        self._x, self._transposed, self._sgemm = x, transposed, blas()
        self._layers = tuple(zip(*layers, strict=True))
        self._gradients = tuple(zip(*(gradients or layers), strict=True))
        n, rows = len(layers[0].weight), len(x)
        sizes = [layer.bias.shape[1] for layer in layers]

        def buffers() -> tuple[_Array, ...]:
            return tuple(np.zeros((n, rows, size), np.float32) for size in sizes)

        self._normed, self._y, self._d = buffers(), buffers(), buffers()
        self._scale = tuple(np.zeros((n, rows), np.float32) for _ in layers)  # 1 / std of what is normalised
        self.y, self.d = self._y[-1], self._d[-1]
        self.d_x = np.zeros((n, *x.shape), np.float32)

    def part(self, rows: slice) -> Dense:
        """Some of the rows, on the same buffers. Of one network."""
        twin = object.__new__(Dense)
        vars(twin).update(vars(self))
        for name in ("_normed", "_scale", "_y", "_d"):
            setattr(twin, name, tuple(values[:, rows] for values in getattr(self, name)))
        twin._x, twin.d_x = self._x[rows], self.d_x[:, rows]
        twin.y, twin.d = twin._y[-1], twin._d[-1]
        return twin

    def forward(self) -> _Array:
        """Linear, layer normalisation where there is one, ReLU; the last layer linear. Returns y."""
        _forward(self._x, *self._layers, self._normed, self._scale, self._y, self._transposed, self._sgemm)
        return self.y

    def backward(self, learn: bool = True, to_x: bool = False) -> None:
        """Propagate d, after a `forward`: to the parameters' gradients, and to d_x, where these are wanted."""
        _backward(
            *(self._x, *self._layers, *self._gradients, self._normed, self._scale, self._y, self._d, self.d_x),
            *(self._transposed, self._sgemm, learn, to_x),
        )


@intrinsic
def _call_sgemm(context: Any, sgemm: Any, numbers: Any, left: Any, right: Any, product: Any) -> Any:
    """Call a Fortran sgemm: all by reference. `numbers` holds m, n, k, three strides, alpha, beta and two flags.

    Integers have 64 bits: little-endian ones of 32 bits begin with the same bytes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        sgemm, numbers, *matrices = arguments
        m, n, k, ld_left, ld_right, ld_product, alpha, beta, trans_left, trans_right = (
            builder.inttoptr(builder.add(numbers, ir.Constant(numbers.type, offset)), byte)
            for offset in (*range(0, 56, 8), 52, 56, 57)
        )
        left, right, product = (builder.inttoptr(matrix, byte) for matrix in matrices)
        order = trans_left, trans_right, m, n, k, alpha, left, ld_left, right, ld_right, beta, product, ld_product
        function = ir.FunctionType(ir.VoidType(), [byte] * len(order))
        builder.call(builder.inttoptr(sgemm, function.as_pointer()), order)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@compiled
def _multiply(a: Any, b: Any, c: Any, transpose_a: bool, transpose_b: bool, sgemm: int) -> None:
    """Give c = a b, with each of them transposed or not. In Fortran's order of memory that is c^T = b^T a^T."""
    numbers = np.empty(8, np.int64)
    numbers[0], numbers[1], numbers[2] = c.shape[1], c.shape[0], a.shape[0] if transpose_a else a.shape[1]
    numbers[3], numbers[4], numbers[5] = b.shape[1], a.shape[1], c.shape[1]
    floats, flags = numbers.view(np.float32), numbers.view(np.uint8)
    floats[12], floats[13] = ONE, ZERO
    flags[56], flags[57] = ord("T") if transpose_b else ord("N"), ord("T") if transpose_a else ord("N")
    _call_sgemm(sgemm, numbers.ctypes.data, b.ctypes.data, a.ctypes.data, c.ctypes.data)  # type: ignore[call-arg]


@compiled
def _forward(
    x: Any,
    weights: Any,
    biases: Any,
    gains: Any,
    offsets: Any,
    normed: Any,
    scale: Any,
    ys: Any,
    transposed: bool,
    sgemm: int,
) -> None:
    for n in range(len(ys[0])):
        for i in range(len(ys)):
            inputs, weight, y = x if i == 0 else ys[i - 1][n], weights[i][n], ys[i][n]
            _multiply(inputs, weight, y, False, transposed, sgemm)
            if gains[i].shape[1] > 0:
                _normalise(y, biases[i][n], gains[i][n], offsets[i][n], normed[i][n], scale[i][n])
            else:
                last, bias = i == len(ys) - 1, biases[i][n]
                for b in range(y.shape[0]):
                    for o in range(y.shape[1]):
                        value = y[b, o] + bias[o]
                        y[b, o] = value if last or not value < ZERO else ZERO


@compiled
def _normalise(y: Any, bias: Any, gain: Any, offset: Any, normed: Any, scale: Any) -> None:
    """In place of y [B, O]: bias, layer normalisation, ReLU; what is normalised and its scale are kept."""
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
def _backward(
    x: Any,
    weights: Any,
    biases: Any,
    gains: Any,
    offsets: Any,
    d_weights: Any,
    d_biases: Any,
    d_gains: Any,
    d_offsets: Any,
    normed: Any,
    scale: Any,
    ys: Any,
    ds: Any,
    d_x: Any,
    transposed: bool,
    sgemm: int,
    learn: bool,
    to_x: bool,
) -> None:
    for n in range(len(ys[0])):
        for i in range(len(ys) - 1, -1, -1):
            inputs, d = x if i == 0 else ys[i - 1][n], ds[i][n]
            if i < len(ys) - 1:
                y = ys[i][n]
                for b in range(d.shape[0]):
                    for o in range(d.shape[1]):
                        d[b, o] = d[b, o] if y[b, o] > ZERO else ZERO
            if gains[i].shape[1] > 0:
                _back_through_norm(d, gains[i][n], d_gains[i][n], d_offsets[i][n], normed[i][n], scale[i][n], learn)
            if learn:
                if transposed:
                    _multiply(d, inputs, d_weights[i][n], True, False, sgemm)
                else:
                    _multiply(inputs, d, d_weights[i][n], True, False, sgemm)
                d_bias = d_biases[i][n]
                d_bias[:] = ZERO
                for b in range(d.shape[0]):
                    for o in range(d.shape[1]):
                        d_bias[o] += d[b, o]
            if i > 0:
                _multiply(d, weights[i][n], ds[i - 1][n], False, not transposed, sgemm)
            elif to_x:
                _multiply(d, weights[i][n], d_x[n], False, not transposed, sgemm)


@compiled
def _back_through_norm(d: Any, gain: Any, d_gain: Any, d_offset: Any, normed: Any, scale: Any, learn: bool) -> None:
    """In place of d [B, O], the derivative behind layer normalisation: that before it."""
    size = np.float32(d.shape[1])
    if learn:
        d_gain[:] = ZERO
        d_offset[:] = ZERO
    for b in range(d.shape[0]):
        total, along = ZERO, ZERO
        for o in range(d.shape[1]):
            if learn:
                d_gain[o] += d[b, o] * normed[b, o]
                d_offset[o] += d[b, o]
            d[b, o] *= gain[o]
            total += d[b, o]
            along += d[b, o] * normed[b, o]
        total /= size
        along /= size
        for o in range(d.shape[1]):
            d[b, o] = scale[b] * (d[b, o] - total - normed[b, o] * along)


@compiled
def adam(
    parameter: Any,
    gradient: Any,
    mean: Any,
    square: Any,
    largest: Any,
    rates: tuple[float, ...],
    decoupled: bool,
) -> None:
    """One step of Adam (AdamW where weight decay is decoupled) on flat arrays, as `torch.optim` has it, but that an
    undecoupled decay is left in the gradient.

    `rates`: learning rate, beta 1, beta 2, epsilon, weight decay, steps. `largest`: empty without AMSGrad.
    """
    lr, beta_1, beta_2, eps, decay, steps = rates
    step_size = np.float32(lr / (1.0 - beta_1**steps))
    root = np.float32(1.0 / np.sqrt(1.0 - beta_2**steps))
    small, keep, pull = np.float32(eps), np.float32(1.0 - lr * decay), np.float32(decay)
    new_1, old_2, new_2 = np.float32(1.0 - beta_1), np.float32(beta_2), np.float32(1.0 - beta_2)
    size = len(parameter)
    for first in range(0, size, _CHUNK):  # in loops of few arrays, which the compiler vectorises
        chunk = slice(first, min(first + _CHUNK, size))
        p, g, m, v = parameter[chunk], gradient[chunk], mean[chunk], square[chunk]
        if decoupled:
            for i in range(len(p)):
                p[i] *= keep
        elif decay > 0.0:
            for i in range(len(p)):
                g[i] += pull * p[i]
        for i in range(len(p)):
            m[i] += (g[i] - m[i]) * new_1
        for i in range(len(p)):
            v[i] = v[i] * old_2 + g[i] * g[i] * new_2
        if len(largest) > 0:
            most = largest[chunk]
            for i in range(len(p)):
                most[i] = max(most[i], v[i])
            v = most
        for i in range(len(p)):
            p[i] -= step_size * m[i] / (np.sqrt(v[i]) * root + small)


@compiled
def move(average: Any, parameter: Any, share: float) -> None:
    """Exponential moving average, in place; `share` of the parameter comes in."""
    weight = np.float32(share)
    for i in range(len(average)):
        average[i] += (parameter[i] - average[i]) * weight
