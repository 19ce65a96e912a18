"""Dense networks compiled for the CPU: passes forward and back.

At the sizes that robots learn with, a training step in torch is mostly calls. Here a pass through N networks is one
call of a function that numba compiles: matrix products from BLAS, and what is between them in one sweep over memory.
Shape names: N networks side by side, M of them that are asked, B batch, I inputs, O outputs of a layer.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numpy as np
import torch
from numba import config, njit, types
from numba.extending import get_cython_function_address
from torch import nn

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("NUMBA_DISABLE_JIT is set")

log = logging.getLogger("tmrl_like.agents")

_Array = np.ndarray[Any, Any]
_EPS = np.float32(1e-5)  # of torch's layer normalisation
ZERO, ONE = np.float32(0.0), np.float32(1.0)

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


class Dense:
    """A batch through the layers of an actor or of critics, and back. What a call returns holds until the next one.

    Attributes:
        y: the output of the last `forward`, [N, B, O].
        d: the derivative of a loss by y, to be filled before going back; [N, B, O].
    """

    def __init__(self, module: Any, num_rows: int) -> None:
        """Make the buffers for batches of `num_rows`; `module` has `hidden`, `norms` and `head`."""
        self._transposed = isinstance(module.head, nn.Linear)
        self._layers = _layers_of(module, lambda parameter: parameter.detach().numpy())
        is_trained = module.head.weight.requires_grad
        self._gradients = _layers_of(module, lambda parameter: parameter.grad.numpy()) if is_trained else self._layers
        shapes = [(len(bias), num_rows, bias.shape[1]) for _, bias, *_ in self._layers]
        self._buffers = tuple((*(zeros(*shape) for _ in range(3)), zeros(*shape[:2])) for shape in shapes)
        self.y, self.d, *_ = self._buffers[-1]
        self._all = np.arange(len(self.y))

    def forward(self, x: _Array, members: _Array | None = None) -> _Array:
        """Linear, layer normalisation where there is one, ReLU; the last layer linear.

        Args:
            x: [B, I], contiguous: the input that all networks share.
            members: int64 [M], which networks to ask; None: all.

        Returns:
            y, or the M of it that were asked.
        """
        self._x, asked = x, self._all if members is None else members
        _forward(x, asked, self._layers, self._buffers, self._transposed)
        return self.y[: len(asked)]

    def learn(self) -> None:
        """After a `forward` of all networks: from d to the gradients of the parameters."""
        _backward(self._x, self._layers, self._gradients, self._buffers, zeros(0, 0, 0), self._transposed)

    def back_to_x(self) -> _Array:
        """After a `forward` of all networks: from d to the derivative by x, of each network, [N, B, I]."""
        d_x = np.empty((len(self._all), *self._x.shape), np.float32)
        _backward(self._x, self._layers, self._gradients, self._buffers, d_x, self._transposed)
        return d_x


def zeros(*shape: int) -> _Array:
    """float32."""
    return np.zeros(shape, np.float32)


def _layers_of(module: Any, see: Callable[[Any], _Array]) -> tuple[tuple[_Array, ...], ...]:
    """What there is to see of the parameters of each layer: weight [N, I, O] (of an nn.Linear [1, O, I]), bias [N, O],
    and of its layer normalisation gain and offset [N, O]; without one [N, 0].
    """
    linears = (*module.hidden, module.head)
    n = 1 if isinstance(module.head, nn.Linear) else len(module.head.weight)
    layers = []
    for linear, norm in itertools.zip_longest(linears, module.norms):
        weight = see(linear.weight)
        behind = (zeros(n, 0), zeros(n, 0)) if norm is None else (see(norm.weight), see(norm.bias))
        rows = (values.reshape(n, values.size // n) for values in (see(linear.bias), *behind))
        layers.append((weight.reshape(n, *weight.shape[-2:]), *rows))
    return tuple(layers)


@compiled
def _multiply(a: Any, b: Any, c: Any, transpose_a: bool, transpose_b: bool) -> None:
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
def _forward(x: Any, members: Any, layers: Any, buffers: Any, transposed: bool) -> None:
    for m in range(len(members)):
        n, inputs = members[m], x
        for i in range(len(layers)):
            weight, bias, gain, offset = layers[i]
            ys, _, normed, scale = buffers[i]
            y = ys[m]
            _multiply(inputs, weight[n], y, False, transposed)
            if gain.shape[1] > 0:
                _normalise(y, bias[n], gain[n], offset[n], normed[m], scale[m])
            else:
                _add_bias(y, bias[n], i < len(layers) - 1)
            inputs = y


@compiled
def _add_bias(y: Any, bias: Any, rectify: bool) -> None:
    """In place of y [B, O]: bias, and ReLU."""
    for b in range(y.shape[0]):
        for o in range(y.shape[1]):
            value = y[b, o] + bias[o]
            y[b, o] = ZERO if rectify and value < ZERO else value


@compiled
def _normalise(y: Any, bias: Any, gain: Any, offset: Any, normed: Any, scale: Any) -> None:
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
def _backward(x: Any, layers: Any, gradients: Any, buffers: Any, d_x: Any, transposed: bool) -> None:
    """To d_x, or, where it is empty, to the gradients."""
    learn = d_x.size == 0
    for n in range(len(buffers[0][0])):
        for i in range(len(layers) - 1, -1, -1):
            weight, _, gain, _ = layers[i]
            d_weight, d_bias, d_gain, d_offset = gradients[i]
            ys, ds, normed, scale = buffers[i]
            inputs, y, d = x if i == 0 else buffers[i - 1][0][n], ys[n], ds[n]
            if i < len(layers) - 1:
                _back_through_relu(d, y)
            if gain.shape[1] > 0:
                if learn:
                    _learn_norm(d, normed[n], d_gain[n], d_offset[n])
                _back_through_norm(d, gain[n], normed[n], scale[n])
            if learn and transposed:
                _multiply(d, inputs, d_weight[n], True, False)
            elif learn:
                _multiply(inputs, d, d_weight[n], True, False)
            if learn:
                _sum_rows(d, d_bias[n])
            if i > 0:
                _multiply(d, weight[n], buffers[i - 1][1][n], False, not transposed)
            elif not learn:
                _multiply(d, weight[n], d_x[n], False, not transposed)


@compiled
def _back_through_relu(d: Any, y: Any) -> None:
    for b in range(d.shape[0]):
        for o in range(d.shape[1]):
            d[b, o] = d[b, o] if y[b, o] > ZERO else ZERO


@compiled
def _learn_norm(d: Any, normed: Any, d_gain: Any, d_offset: Any) -> None:
    """The gradients of gain and offset [O]."""
    d_gain[:] = ZERO
    d_offset[:] = ZERO
    for b in range(d.shape[0]):
        for o in range(d.shape[1]):
            d_gain[o] += d[b, o] * normed[b, o]
            d_offset[o] += d[b, o]


@compiled
def _back_through_norm(d: Any, gain: Any, normed: Any, scale: Any) -> None:
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
def _sum_rows(d: Any, total: Any) -> None:
    total[:] = ZERO
    for b in range(d.shape[0]):
        for o in range(d.shape[1]):
            total[o] += d[b, o]
