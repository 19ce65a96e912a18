"""A shipped actor's arithmetic in numpy: from a flat observation to an action, in microseconds.

Plain data says how it is done (`NetworkSpec`), so that another process can do it without the environment's spaces.

Shape names: R numbers of an observation, V entries that stand for them, A flat action, K categorical variables.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from tmrl_like.base.text import one_line
from tmrl_like.errors import PolicyError
from tmrl_like.policies.noise import ColouredNoise
from tmrl_like.policies.weight_file import Manifest

MAX_SCALE = 1e6  # wider bounds say nothing about the size of the values
EPS = 1e-5  # of torch's layer normalisation
SCALE, SHIFT = "encoder.rescale.scale", "encoder.rescale.shift"  # parameters

_Array = np.ndarray[Any, Any]


class GaussianSpec(msgspec.Struct, frozen=True, tag="gaussian"):
    """Actions  center + half * tanh(u),  u ~ N(mean, std)."""

    shape: tuple[int, ...]
    center: tuple[float, ...]  # [A]
    half: tuple[float, ...]  # [A]
    log_std_min: float
    log_std_max: float
    noise_beta: float  # of noise over time, see `ColouredNoise`; 0: independent draws
    noise_steps: int

    @property
    def num_outputs(self) -> int:
        """Mean and log standard deviation of each entry."""
        return 2 * len(self.center)


class CategoricalSpec(msgspec.Struct, frozen=True, tag="categorical"):
    """Actions of one or more categorical variables."""

    shape: tuple[int, ...]  # (): a number
    dtype: str
    sizes: tuple[int, ...]  # [K] how many categories
    first: tuple[int, ...]  # [K] the smallest

    @property
    def num_outputs(self) -> int:
        """A logit of each category."""
        return sum(self.sizes)


class NetworkSpec(msgspec.Struct, frozen=True):
    """All of a network but its parameters."""

    low: tuple[float, ...]  # [R]
    high: tuple[float, ...]  # [R]
    num_categories: tuple[int, ...]  # [R]; 0: a number
    obs_range: float  # 0: numbers stay as they are
    normalize_obs: bool  # where a number is `unbounded`, scale and shift of all are parameters
    hidden_sizes: tuple[int, ...]
    layer_norm: bool
    action: GaussianSpec | CategoricalSpec


class Network:
    """A network with its parameters. One thread at a time.

    Attributes:
        manifest: names, dtypes and shapes of the parameters, which are those of the torch actor's `state_dict`.
        input: float32 [R], the flat observation that `act` answers; may be replaced by a view of other memory.
        random: draws what `act` explores with, a Generator or `ColouredNoise`; seeded from numpy's global generator.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        """Make the parameters: those of an untrained torch actor."""
        random = np.random.default_rng(np.random.randint(0, 1 << 32, 4, np.uint32))
        self.input = np.zeros(len(spec.low), np.float32)
        bounds = np.array(spec.low), np.array(spec.high)
        num_categories = np.array(spec.num_categories)
        self._normalizes = spec.normalize_obs and bool(unbounded(*bounds, num_categories).any())
        self._scale, self._shift = scale_and_shift(*bounds, spec.obs_range)
        self._rescales = self._normalizes or bool((self._scale != 1).any() or (self._shift != 0).any())
        self._scaled = np.empty_like(self.input)
        self._source, self._value, self._is_category = one_hot_layout(bounds[0], num_categories)
        self._has_categories = bool(self._is_category.any())
        self._entries, self._matches = np.empty_like(self._value), np.empty_like(self._value)
        widths = [len(self._source), *spec.hidden_sizes, spec.action.num_outputs]
        self._values = [np.empty(width, np.float32) for width in widths[1:]]
        names = [*(f"hidden.{i}" for i in range(len(spec.hidden_sizes))), "head"]
        forms = {
            f"{name}.{kind}": shape
            for name, (width_in, width) in zip(names, itertools.pairwise(widths), strict=True)
            for kind, shape in (("weight", (width, width_in)), ("bias", (width,)))
        }
        norms = {
            f"norms.{i}.{kind}": (width,)
            for i, width in enumerate(spec.hidden_sizes if spec.layer_norm else ())
            for kind in ("weight", "bias")
        }
        encoder = dict.fromkeys((SCALE, SHIFT) if self._normalizes else (), self.input.shape)
        in_order = [*encoder], [name for name in forms if name[:4] != "head"], [*norms], ["head.weight", "head.bias"]
        forms |= norms | encoder
        self.manifest: Manifest = {name: ("F32", forms[name]) for name in itertools.chain(*in_order)}
        action = spec.action
        self._head = _GaussianHead(action) if isinstance(action, GaussianSpec) else _CategoricalHead(action)
        self.bind({name: self._untrained(name, shape, random) for name, (_, shape) in self.manifest.items()})
        self.random: Any = random
        if isinstance(action, GaussianSpec) and action.noise_beta:
            self.random = ColouredNoise(action.noise_beta, action.noise_steps, len(action.center), random)

    def _untrained(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> _Array:
        """As torch begins: a layer's weights and biases uniform, a layer's normalisation without effect."""
        if name in (SCALE, SHIFT):
            return self._scale if name == SCALE else self._shift
        if name.startswith("norms"):
            return np.full(shape, float(name.endswith("weight")), np.float32)
        bound = 1 / math.sqrt(self.manifest[name.replace("bias", "weight")][1][1])
        return random.uniform(-bound, bound, shape).astype(np.float32)

    def bind(self, parameters: Mapping[str, _Array]) -> None:
        """Compute with these arrays from now on, without a copy; names, dtypes and shapes are the manifest's."""
        self.parameters = {name: parameters[name] for name in self.manifest}
        if self._normalizes:
            self._scale, self._shift = parameters[SCALE], parameters[SHIFT]
        layers = [name.removesuffix(".weight") for name in self.manifest if name.endswith("weight")]
        linear = [(parameters[f"{name}.weight"].dot, parameters[f"{name}.bias"]) for name in layers if name[0] == "h"]
        scales = [(parameters[f"{name}.weight"], parameters[f"{name}.bias"]) for name in layers if name[0] == "n"]
        steps = [(*layer, values) for layer, values in zip(linear, self._values, strict=True)]
        norms: list[Any] = [*scales] or [(None, None)] * (len(steps) - 1)
        self._hidden = [(*step, *norm) for step, norm in zip(steps, norms, strict=False)]
        self._last = steps[-1]

    @np.errstate(all="ignore")
    def act(self, test: bool) -> Any:
        """The action for `input`, a new array, or a number where the space is Discrete; `test` asks for the best one.

        What is not finite in input or parameters makes the action NaN.
        """
        x = self.input
        if self._rescales:
            x = np.multiply(x, self._scale, self._scaled)
            np.add(x, self._shift, x)
        if self._has_categories:
            np.take(x, self._source, out=self._entries, mode="clip")
            np.take(self.input, self._source, out=self._matches, mode="clip")
            np.equal(self._matches, self._value, self._matches)
            np.copyto(self._entries, self._matches, where=self._is_category)
            x = self._entries
        for dot, bias, values, norm_weight, norm_bias in self._hidden:
            dot(x, values)
            np.add(values, bias, values)
            if norm_weight is not None:
                values -= np.add.reduce(values) / len(values)
                values *= norm_weight / math.sqrt(values.dot(values) / len(values) + EPS)
                values += norm_bias
            x = np.maximum(values, 0.0, out=values)
        dot, bias, values = self._last
        dot(x, values)
        return self._head.choose(np.add(values, bias, values), None if test else self.random)

    def check(self, inputs: _Array) -> None:
        """See that the network has an answer; those that are finite are in the action space.

        Args:
            inputs: float32 [N, R], flat observations.

        Raises:
            PolicyError: an answer is not finite.
        """
        for answer in self.answers(inputs):
            if not np.isfinite(answer).all():
                text = one_line(np.array2string(np.asarray(answer), threshold=8, precision=3))
                raise PolicyError(
                    "its action on a probe observation is not in the action space: it holds values that are not "
                    f"finite: {text}"
                )

    def answers(self, inputs: _Array) -> list[Any]:
        """float32 [N, R], flat observations -> the best action for each."""
        own = self.input
        try:
            answers = []
            for self.input in inputs:
                answers.append(self.act(test=True))
            return answers
        finally:
            self.input = own


class _GaussianHead:
    def __init__(self, spec: GaussianSpec) -> None:
        self._shape = spec.shape
        self._center, self._half = np.array(spec.center, np.float32), np.array(spec.half, np.float32)
        self._min, self._max = np.float32(spec.log_std_min), np.float32(spec.log_std_max)
        self._noise = np.empty_like(self._half)
        self._size = len(self._half)

    def choose(self, outputs: _Array, random: np.random.Generator | ColouredNoise | None) -> Any:
        """Mean and log standard deviation [2 A] -> action; without `random` u's mean."""
        mean = outputs[: self._size]
        if random is not None:
            std = outputs[self._size :]
            np.minimum(np.maximum(std, self._min, out=std), self._max, out=std)
            np.exp(std, std)
            np.multiply(std, random.standard_normal(dtype=np.float32, out=self._noise), std)
            np.add(mean, std, mean)
        action = np.tanh(mean)
        action *= self._half
        action += self._center
        return action.reshape(self._shape)


class _CategoricalHead:
    def __init__(self, spec: CategoricalSpec) -> None:
        self._spec = spec
        ends = np.cumsum(spec.sizes).tolist()
        self._variables = [
            (slice(end - size, end), first) for end, size, first in zip(ends, spec.sizes, spec.first, strict=True)
        ]
        self._noise = np.empty(spec.num_outputs, np.float32)

    def choose(self, outputs: _Array, random: np.random.Generator | None) -> Any:
        """Logits [V] -> action; without `random` each variable's likeliest category, else Gumbel noise decides."""
        if random is not None:
            random.standard_exponential(dtype=np.float32, out=self._noise)
            np.subtract(outputs, np.log(self._noise, self._noise), outputs)
        chosen = []
        for part, first in self._variables:
            logits = outputs[part]
            index = int(logits.argmax())  # of a NaN, if there is one
            if not math.isfinite(logits[index]):
                return np.full(self._spec.shape, np.nan)[()]
            chosen.append(index + first)
        return np.array(chosen, self._spec.dtype).reshape(self._spec.shape)[()]


def scale_and_shift(low: _Array, high: _Array, limit: float) -> tuple[_Array, _Array]:
    """What brings bounded numbers to [-limit, limit], float32 [R] each; those without useful bounds pass as they are.

    Bounds are [R]; a limit of 0 leaves all numbers as they are.
    """
    useful = ~unbounded(low, high) & (limit > 0)
    scale = np.where(useful, limit / np.where(useful, _half_width(low, high), 1.0), 1.0)
    shift = np.where(useful, -limit - np.where(useful, low, 0.0) * scale, 0.0)  # low goes to -limit
    return scale.astype(np.float32), shift.astype(np.float32)


def unbounded(low: _Array, high: _Array, num_categories: _Array | int = 0) -> _Array:
    """Which numbers have no useful bounds, but infinite, absurdly wide or equal ones; categories are none: bool [R]."""
    half = _half_width(low, high)
    return ~((half > 0) & (half < MAX_SCALE)) & (num_categories == 0)


def _half_width(low: _Array, high: _Array) -> _Array:
    return high.astype(np.float64) / 2 - low.astype(np.float64) / 2


def one_hot_layout(first: _Array, num_categories: _Array) -> tuple[_Array, _Array, _Array]:
    """The entries that stand for numbers, some of which are categories: each of these becomes one per category.

    Args:
        first: float [R], the smallest category.
        num_categories: int64 [R], 0 where a number is not categorical.

    Returns:
        Of each entry: int64 [V] which number it is made of, float32 [V] which category it stands for, bool [V] whether
        it stands for one.
    """
    sizes = np.maximum(num_categories, 1)
    source = np.repeat(np.arange(len(sizes)), sizes)
    count = np.arange(len(source)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return source, (first[source] + count).astype(np.float32), num_categories[source] > 0
