"""A built-in actor as plain data, and its computation in numpy, which makes an action from a flat
observation in microseconds.

The data (`NetworkSpec`) describe everything but the parameters, so that another process can act
without the environment's spaces.

Shape names: R numbers of an observation, P pixels of its images, V entries that encode the numbers,
A numbers of a flat action, K categorical variables.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tmrl_like.base.options import NotNegative, Options, Positive
from tmrl_like.base.text import one_line
from tmrl_like.errors import PolicyError
from tmrl_like.policies.layers import Floats, WeightAndBias, layer_of, normalise
from tmrl_like.policies.noise import ColouredNoise
from tmrl_like.policies.pictures import PICTURE_FEATURES, PictureNetwork, PictureSpec
from tmrl_like.policies.weight_file import Manifest
from tmrl_like.types import Action

# torch initialises layers small: with inputs of this size the first layer can resolve them
OBS_RANGE = 3.0
LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0  # of a Gaussian policy
MAX_SCALE = 1e6  # wider bounds say nothing about the size of the values
_ZERO = np.zeros((), np.float32)  # as an array, which numpy need not convert
# parameters
SCALE, SHIFT = "encoder.rescale.scale", "encoder.rescale.shift"
_AVERAGE = "average."
_IS_USED = "average.is_used"

_Layers: TypeAlias = tuple[list[tuple[WeightAndBias, WeightAndBias | None]], WeightAndBias]


@dataclass(frozen=True)
class NetworkOptions(Options):
    """Options of a network of hidden layers.

    Attributes:
        hidden_sizes: width of each hidden layer.
        layer_norm: normalise each hidden layer before its ReLU.
        obs_range: bounded observations are scaled to [-obs_range, obs_range]; 0 leaves them as they
            are.
        normalize_obs: normalise observed numbers without useful bounds by the running statistics
            that the agent keeps.
    """

    hidden_sizes: tuple[Positive, ...] = (256, 256)
    layer_norm: bool = False
    obs_range: NotNegative = OBS_RANGE
    normalize_obs: bool = True


@dataclass(frozen=True)
class GaussianOptions(NetworkOptions):
    """Options of an actor with a squashed Gaussian policy.

    Its actions are  center + half * tanh(u),  u ~ N(mean, std).

    Attributes:
        noise_beta: exponent of the exploration noise while acting, 0 to 2. With 0, each action's
            noise is drawn independently. Above 0, an episode's noise has the power spectral density
            1 / f^noise_beta, so that it moves smoothly; see `ColouredNoise`. Training always draws
            independently.
        noise_steps: the lowest frequency of the noise is 1 / noise_steps. Choose about the number
            of steps of an episode, or fewer.
    """

    noise_beta: Annotated[float, Meta(ge=0, le=2)] = 0.0
    noise_steps: Positive = 1000


class Numbers(msgspec.Struct, frozen=True):
    """The numbers of a flat observation as the environment gives them, without the images."""

    low: tuple[float, ...]  # [R]
    high: tuple[float, ...]  # [R]
    num_categories: tuple[int, ...]  # [R]; 0: not categorical, else `low` is the smallest category

    @np.errstate(all="ignore")
    def scaling(self, limit: float) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Return the scaling of bounded numbers to [-limit, limit]; a limit of 0 leaves all as they
        are.

        Returns:
            For each number, [R]: scale, shift, and whether it lacks useful bounds, that is, is not
            categorical and has infinite, absurdly wide or equal bounds.
        """
        low = np.array(self.low)
        half = np.array(self.high) / 2 - low / 2
        is_bounded = (half > 0) & (half < MAX_SCALE)
        is_scaled = is_bounded & (limit > 0)
        scale = np.where(is_scaled, limit / half, 1.0)
        shift = np.where(is_scaled, -limit - low * scale, 0.0)  # low goes to -limit
        is_unbounded = ~is_bounded & (np.array(self.num_categories) == 0)
        return scale.astype(np.float32), shift.astype(np.float32), is_unbounded

    def entries(self) -> tuple[NDArray[np.int64], Floats, NDArray[np.bool_]]:
        """Return the entries that encode the numbers: a categorical number becomes one entry per
        category, one of which is 1; any other number stays one entry.

        Returns:
            For each entry, [V]: the index of the number that it encodes, the category that it
            stands for, and whether it stands for a category.
        """
        rows = [
            (place, low + i, size > 0)
            for place, (low, size) in enumerate(zip(self.low, self.num_categories, strict=True))
            for i in range(max(size, 1))
        ]
        source, value, is_category = np.array(rows, np.float64).reshape(-1, 3).T
        return source.astype(np.int64), value.astype(np.float32), is_category.astype(np.bool_)


class _ActorSpec(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    numbers: Numbers
    pictures: tuple[PictureSpec, ...]  # follow the numbers in the input
    options: NetworkOptions
    shape: tuple[int, ...]  # of an action; () for a number
    dtype: str  # of an action

    def noise(self, random: np.random.Generator) -> Any:
        """Return what draws the exploration noise from `random`: itself, or a `ColouredNoise`."""
        return random


class GaussianSpec(_ActorSpec, frozen=True, kw_only=True, tag="gaussian"):
    """The description of an actor for a Box action space."""

    options: GaussianOptions
    center: tuple[float, ...]  # [A]
    half: tuple[float, ...]  # [A]

    @property
    def num_outputs(self) -> int:
        """Number of outputs: mean and log standard deviation of each of the A numbers."""
        return 2 * len(self.center)

    @functools.cached_property
    def _arrays(self) -> list[NDArray[np.floating[Any]]]:
        return [np.array(values, self.dtype) for values in (self.center, self.half)]

    def noise(self, random: np.random.Generator) -> Any:
        """Return the coloured noise, or `random` if `noise_beta` is 0."""
        beta, steps = self.options.noise_beta, self.options.noise_steps
        return ColouredNoise(beta, steps, len(self.center), random) if beta else random

    def action(self, outputs: Floats, random: Any) -> Action:
        """Return the action, a new array of the space's dtype, for mean and log standard
        deviation, [2 A]. Without `random`, u is its mean.
        """
        center, half = self._arrays
        u = outputs[: len(center)]
        if random is not None:
            log_std = np.minimum(np.maximum(outputs[len(center) :], LOG_STD_MIN), LOG_STD_MAX)
            u = u + np.exp(log_std) * random.standard_normal(len(center), np.float32)
        return (np.tanh(u) * half + center).reshape(self.shape)


class CategoricalSpec(_ActorSpec, frozen=True, kw_only=True, tag="categorical"):
    """The description of an actor of one or more categorical variables."""

    sizes: tuple[int, ...]  # [K] number of categories
    first: tuple[int, ...]  # [K] smallest category

    @property
    def num_outputs(self) -> int:
        """Number of outputs: a logit for each category."""
        return sum(self.sizes)

    def action(self, outputs: Floats, random: np.random.Generator | None) -> Action:
        """Return the action for logits, one for each category: a new array, or a number if the
        space is Discrete. It is NaN if a chosen logit is not finite.

        Without `random`, each variable takes its likeliest category; with it, Gumbel noise decides.
        """
        if random is not None:
            # in float64: a float32 is 0 every eight million numbers, and its logarithm infinite
            outputs = outputs - np.log(random.standard_exponential(len(outputs)))
        chosen, start = [], 0
        for size, first in zip(self.sizes, self.first, strict=True):
            logits = outputs[start : start + size]
            index = int(logits.argmax())  # that of a NaN, if there is one
            if not math.isfinite(logits[index]):
                return np.full(self.shape, np.nan)[()]
            chosen.append(first + index)
            start += size
        return np.array(chosen, self.dtype).reshape(self.shape)[()]


NetworkSpec: TypeAlias = GaussianSpec | CategoricalSpec
"""The description of a built-in actor: everything but its parameters."""


def new_generator() -> np.random.Generator:
    """Return a generator that is seeded from numpy's global one."""
    return np.random.default_rng(np.random.randint(0, 1 << 32, 4, np.uint32))


def input_size(spec: NetworkSpec | None) -> int:
    """Return the size of the network's input, R + P, or 0 without a network."""
    return (
        0
        if spec is None
        else len(spec.numbers.low) + sum(picture.num_pixels for picture in spec.pictures)
    )


class Network:
    """A network with its parameters. One thread at a time.

    Attributes:
        manifest: names, dtypes and shapes of the parameters, which are those of the torch actor's
            `state_dict`.
        parameters: the arrays, by these names.
        input: float32 [R + P], the flat observation that `act` reads. May be replaced by a view of
            other memory.
        random: draws the noise that `act` explores with.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        """Build the network, with parameters like those of an untrained torch actor."""
        numbers, options = spec.numbers, spec.options
        random = new_generator()
        self._spec = spec
        self.input = np.zeros(input_size(spec), np.float32)
        self._scale, self._shift, is_unbounded = numbers.scaling(options.obs_range)
        self._source, self._value, self._is_category = numbers.entries()
        self._has_categories = bool(self._is_category.any())
        self._pictures = [PictureNetwork(picture) for picture in spec.pictures]
        self._ends = np.cumsum(
            [len(numbers.low), *(picture.num_pixels for picture in spec.pictures)]
        )
        widths = [
            len(self._source) + PICTURE_FEATURES * len(spec.pictures),
            *options.hidden_sizes,
            spec.num_outputs,
        ]
        *hidden, head = ((width, width_in) for width_in, width in itertools.pairwise(widths))
        pictures = {
            f"encoder.images.{i}.{name}": shape
            for i, picture in enumerate(spec.pictures)
            for name, shape in picture.shapes().items()
        }
        shapes: dict[str, tuple[int, ...]] = {
            f"hidden.{i}": shape for i, shape in enumerate(hidden)
        }
        shapes |= {f"norms.{i}": shape[:1] for i, shape in enumerate(hidden) if options.layer_norm}
        layers = _untrained(shapes | {"head": head}, random)
        is_normalised = options.normalize_obs and is_unbounded.any()
        parameters = {SCALE: self._scale, SHIFT: self._shift} if is_normalised else {}
        parameters |= _untrained(pictures, random) | layers | {_IS_USED: _ZERO.copy()}
        parameters |= {f"{_AVERAGE}{name}": values.copy() for name, values in layers.items()}
        self.manifest: Manifest = {
            name: ("F32", values.shape) for name, values in parameters.items()
        }
        self.bind(parameters)
        self.random = spec.noise(random)

    def bind(self, parameters: Mapping[str, Floats]) -> None:
        """Compute with these arrays from now on, without a copy. Names, dtypes and shapes must be
        those of the manifest.
        """
        self.parameters = {name: parameters[name] for name in self.manifest}
        self._scale, self._shift = (
            parameters.get(SCALE, self._scale),
            parameters.get(SHIFT, self._shift),
        )

        for i, picture in enumerate(self._pictures):
            picture.bind(parameters, f"encoder.images.{i}")
        self._layers = self._layers_of(parameters, "")
        self._average = self._layers_of(parameters, _AVERAGE)
        self._is_average_used = parameters[_IS_USED]

    def _layers_of(self, parameters: Mapping[str, Floats], prefix: str) -> _Layers:
        options = self._spec.options
        hidden: list[tuple[WeightAndBias, WeightAndBias | None]] = []
        for i in range(len(options.hidden_sizes)):
            norm = layer_of(parameters, f"{prefix}norms.{i}") if options.layer_norm else None
            hidden.append((layer_of(parameters, f"{prefix}hidden.{i}"), norm))
        return hidden, layer_of(parameters, f"{prefix}head")

    @np.errstate(all="ignore")
    def act(self, test: bool) -> Action:
        """Return the action for `input`, see the spec's `action`; `test` asks for the best one.

        Values that are not finite, in the input or the parameters, make the action NaN.
        """
        if test:
            return self._spec.action(self._outputs(self._best_layers), None)
        return self._spec.action(self._outputs(self._layers), self.random)

    @property
    def _best_layers(self) -> _Layers:
        return self._average if self._is_average_used[()] > 0 else self._layers

    def _outputs(self, layers: _Layers) -> Floats:
        numbers = self.input[: self._ends[0]] if self._pictures else self.input
        x = numbers * self._scale + self._shift
        if self._has_categories:
            x = np.where(self._is_category, numbers[self._source] == self._value, x[self._source])
        if self._pictures:
            pixels = np.split(self.input, self._ends[:-1])[1:]
            features = (picture(seen) for picture, seen in zip(self._pictures, pixels, strict=True))
            x = np.concatenate((x, *features))
        hidden, (last_weight, last_bias) = layers
        for (weight, bias), norm in hidden:
            x = weight.dot(x)
            x += bias
            if norm is not None:
                normalise(x, norm)
            np.maximum(x, _ZERO, out=x)
        outputs: Floats = last_weight.dot(x) + last_bias
        return outputs

    @np.errstate(all="ignore")
    def check(self, inputs: Floats) -> None:
        """Check that the network's actions are finite. Finite actions are in the action space.

        Args:
            inputs: float32 [N, R + P], flat observations.

        Raises:
            PolicyError: an action is not finite.
        """
        for obs, layers in itertools.product(inputs, (self._layers, self._best_layers)):
            self.input[:] = obs
            answer = np.asarray(self._spec.action(self._outputs(layers), None))
            if not np.isfinite(answer).all():
                text = one_line(np.array2string(answer, threshold=8, precision=3))
                raise PolicyError(
                    "its action on a probe observation is not in the action space: it holds values "
                    f"that are not finite: {text}"
                )


def _untrained(
    shapes: Mapping[str, tuple[int, ...]], random: np.random.Generator
) -> dict[str, Floats]:
    """Return initial parameters of layers as torch's: uniform for a linear layer or a convolution,
    without effect for a normalisation.
    """
    made: dict[str, Floats] = {}
    for name, shape in shapes.items():
        weight, bias = np.ones(shape, np.float32), np.zeros(shape[:1], np.float32)
        if len(shape) > 1:
            bound = 1 / math.sqrt(math.prod(shape[1:]))
            for values in weight, bias:
                values[:] = random.uniform(-bound, bound, values.shape)
        made |= {f"{name}.weight": weight, f"{name}.bias": bias}
    return made
