"""A policy as ONNX, for machines without tmrl_like: what it does with `test=True`, from raw numbers to the action."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tmrl_like.base.files import write_atomically
from tmrl_like.errors import MissingExtraError, PolicyError
from tmrl_like.policies.loading import Policy
from tmrl_like.policies.network import (
    EPS,
    SCALE,
    SHIFT,
    GaussianSpec,
    Network,
    NetworkSpec,
    one_hot_layout,
    scale_and_shift,
)

_OPSET = 17  # the first with LayerNormalization
_IR_VERSION = 8  # that of this opset: runtimes refuse files of a later one than theirs
INPUT, OUTPUT = "observation", "action"

_Array = np.ndarray[Any, Any]


def write_onnx(policy: Policy, path: Path) -> None:
    """Write a policy's best actions as a graph, with scaling, normalisation, one-hot values and the action's bounds.

    Its input `observation` is float32 [N, R], the numbers of observations in the order of the observation space, its
    output `action` float32 or int64 [N, …], in the action space's shape. What an `obs_preprocessor` does is not in it.

    Raises:
        MissingExtraError: ONNX is not installed.
        PolicyError: an actor that there is none of in numpy, or one that sees images.
        OSError: the file cannot be written.
    """
    try:
        import onnx
    except ImportError:
        raise MissingExtraError('writing ONNX needs the extra "onnx": pip install "tmrl_like[onnx]"') from None
    spec, network = getattr(policy.actor, "spec", None), getattr(policy.actor, "network", None)
    if not (isinstance(spec, NetworkSpec) and isinstance(network, Network)):
        raise PolicyError(
            f"a {type(policy.actor).__name__} cannot be written as ONNX: expected a SquashedGaussianActor or "
            "CategoricalActor, without images"
        )
    shape = spec.action.shape
    kind = onnx.TensorProto.FLOAT if isinstance(spec.action, GaussianSpec) else onnx.TensorProto.INT64
    graph = _Graph(onnx, spec, network)
    card = policy.metadata
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "policy",
            [onnx.helper.make_tensor_value_info(INPUT, onnx.TensorProto.FLOAT, ["N", len(spec.low)])],
            [onnx.helper.make_tensor_value_info(OUTPUT, kind, ["N", *shape])],
            graph.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="tmrl_like",
        doc_string=f"{card.run} version {card.version}: {policy.observation_space} -> {policy.action_space}",
    )
    onnx.checker.check_model(model)
    write_atomically(path, model.SerializeToString())


class _Graph:
    """The nodes, each of which takes what the one before gives, and their constants."""

    def __init__(self, onnx: Any, spec: NetworkSpec, network: Network) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        x = self._normalised(spec, network)
        parameters = network.parameters
        for i in range(len(spec.hidden_sizes)):
            x = self._add("Gemm", x, parameters[f"hidden.{i}.weight"], parameters[f"hidden.{i}.bias"], transB=1)
            if spec.layer_norm:
                norm = parameters[f"norms.{i}.weight"], parameters[f"norms.{i}.bias"]
                x = self._add("LayerNormalization", x, *norm, axis=-1, epsilon=EPS)
            x = self._add("Relu", x)
        weight, bias = parameters["head.weight"], parameters["head.bias"]
        action = spec.action
        if isinstance(action, GaussianSpec):
            size = len(action.center)
            x = self._add("Tanh", self._add("Gemm", x, weight[:size], bias[:size], transB=1))
            x = self._add("Mul", x, np.array(action.half, np.float32))
            x = self._add("Add", x, np.array(action.center, np.float32))
        else:
            ends = np.cumsum(action.sizes)
            variables = [slice(end - size, end) for end, size in zip(ends, action.sizes, strict=True)]
            logits = [self._add("Gemm", x, weight[part], bias[part], transB=1) for part in variables]
            chosen = [self._add("ArgMax", values, axis=1, keepdims=1) for values in logits]
            x = self._add("Add", self._add("Concat", *chosen, axis=1), np.array(action.first, np.int64))
        self._add("Reshape", x, np.array([-1, *action.shape], np.int64), output=OUTPUT)

    def _normalised(self, spec: NetworkSpec, network: Network) -> str:
        """What the first layer sees."""
        low, high, num_categories = np.array(spec.low), np.array(spec.high), np.array(spec.num_categories)
        scale, shift = scale_and_shift(low, high, spec.obs_range)
        learnt = network.parameters
        x = self._add("Mul", INPUT, learnt.get(SCALE, scale))
        x = self._add("Add", x, learnt.get(SHIFT, shift))
        source, value, is_category = one_hot_layout(low, num_categories)
        if not is_category.any():
            return x
        chosen = self._add("Equal", self._add("Gather", INPUT, source, axis=1), value)
        chosen = self._add("Cast", chosen, to=self._onnx.TensorProto.FLOAT)
        return self._add("Where", is_category, chosen, self._add("Gather", x, source, axis=1))

    def _add(self, kind: str, *inputs: str | _Array, output: str = "", **attributes: Any) -> str:
        """A node; arrays become constants. Returns the name of its output."""
        names = []
        for value in inputs:
            if isinstance(value, np.ndarray):
                name = f"constant_{len(self.constants)}"
                self.constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
                names.append(name)
            else:
                names.append(value)
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, names, [output], **attributes))
        return output
