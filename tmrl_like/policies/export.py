"""Export of policies to ONNX, for machines without tmrl_like: a graph from observations to the
actions of `test=True`.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from pathlib import Path
from typing import Any

from tmrl_like.base import tree
from tmrl_like.base.files import write_atomically
from tmrl_like.base.text import one_line
from tmrl_like.errors import MissingExtraError, PolicyError
from tmrl_like.policies.load_policy import Policy
from tmrl_like.policies.probe import PolicyProbe

_OPSET = 18  # the oldest that torch writes
INPUT, OUTPUT = "observation", "action"


def input_of(path: tree.Path) -> str:
    """Return the name of the input for the part of an observation at a place."""
    return ".".join(map(str, (INPUT, *path)))


def write_onnx(policy: Policy, path: str | Path) -> None:
    """Write a policy as an ONNX graph that computes its best actions, including all that its actor
    does to observations.

    The inputs are the parts of N observations as the actor sees them, [N, …], in their own dtypes:
    `observation` where there is only one, `observation.KEY` for each part of a Tuple or Dict. The
    output `action` is [N, …], in the action space's shape. The graph does not contain an
    `obs_preprocessor`.

    Raises:
        MissingExtraError: ONNX is not installed.
        PolicyError: the actor has no `best_actions`, or torch cannot export them.
        OSError: the file cannot be written.
    """
    if not all(map(importlib.util.find_spec, ("onnx", "onnxscript"))):
        raise MissingExtraError(
            'writing ONNX needs the extra "onnx": pip install "tmrl_like[onnx]"'
        )
    import torch

    from tmrl_like.policies.actor import ActorModule, to_batch_of_one

    actor: ActorModule = policy.actor.in_torch()
    if type(actor).best_actions is ActorModule.best_actions:
        raise PolicyError(
            f"a {type(actor).__name__} cannot be written as ONNX: give it a method "
            "best_actions(obs), which makes actions [N, …] of tensors [N, …] in torch alone"
        )
    probe = PolicyProbe(policy.observation_space, policy.action_space, policy.obs_preprocessor)
    if not probe.sampled:
        raise PolicyError(
            "the obs_preprocessor raises on observations that are sampled from the policy's space, "
            "so the inputs of the graph are not known"
        )
    obs = to_batch_of_one(probe.sampled[0])
    paths, leaves = zip(*tree.walk(obs), strict=True)

    class BestActions(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor = actor

        def forward(self, *leaves: torch.Tensor) -> torch.Tensor:
            return actor.best_actions(tree.fill(obs, iter(leaves)))

    # its warnings are about other packages that are not installed
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    rows = {0: torch.export.Dim("N")}
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            program: Any = torch.onnx.export(
                BestActions(),
                tuple(torch.cat((leaf, leaf)) for leaf in leaves),
                input_names=[input_of(path) for path in paths],
                output_names=[OUTPUT],
                dynamic_shapes=(tuple(rows for _ in leaves),),
                opset_version=_OPSET,
                verbose=False,
            )
    except Exception as error:  # torch raises errors of many kinds
        raise PolicyError(
            f"torch cannot write {type(actor).__name__}.best_actions as ONNX: "
            f"{one_line(error, 300)}"
        ) from error
    card, model = policy.metadata, program.model_proto
    model.doc_string = (
        f"{card.run} version {card.version}: {policy.observation_space} -> {policy.action_space}"
    )
    write_atomically(Path(path), model.SerializeToString())
