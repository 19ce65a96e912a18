"""A policy of Stable-Baselines3 as an expert.

The zip that its `save` writes holds parameters (`policy.pth`) and text (`data`), which are read here, and pickles,
which are not: neither code of the file's nor stable-baselines3 itself runs.
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.errors import PolicyError
from tmrl_like.policies.actor import ActorModule

_PARAMETERS_BYTES = 256 << 20
_DATA_BYTES = 16 << 20
_PICKLE_BYTES = 1 << 20
_MOST_FILES = 10_000
_DIRECTORY_ENTRY = b"PK\x01\x02"
_NAMES = r"collections OrderedDict|torch._utils _rebuild_tensor_v2|torch \w+Storage"  # what parameters are pickled with
_FORMS = (  # hidden layers, last layer, activation unless the file says another, how the last layer becomes an action
    (r"actor\.latent_pi\.(\d+)\.", "actor.mu.", "ReLU", "squashed"),  # SAC, TQC
    (r"actor\.mu\.(\d+)\.", "", "ReLU", "squashed"),  # TD3, DDPG
    (r"mlp_extractor\.policy_net\.(\d+)\.", "action_net.", "Tanh", "as it is"),  # PPO, A2C
    (r"q_net\.q_net\.(\d+)\.", "", "ReLU", "as it is"),  # DQN
)
_ACTIVATIONS = ("ReLU", "Tanh", "ELU", "LeakyReLU", "SiLU", "GELU", "Sigmoid", "Softplus")


class StableBaselinesActor(ActorModule):
    """Acts as a policy of Stable-Baselines3 does, without exploring: for `worker --expert` and `record --expert`.

    Of a file: `MlpPolicy` of SAC, TD3, DDPG, TQC, PPO, A2C and DQN. Of a `model` that you have loaded yourself
    (`SAC.load(path)`, which unpickles): any policy.

    What an observation holds is put side by side, in its space's order, as by `gymnasium.wrappers.FlattenObservation`;
    an `obs_preprocessor` may leave out what the policy never knew, an action buffer, say.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        path: str | os.PathLike[str] | None = None,
        model: Any = None,
    ) -> None:
        """Give `path` or `model`.

        Raises:
            PolicyError: no such file, no policy that can be read without unpickling, or one for other actions.
        """
        super().__init__(observation_space, action_space)
        if (path is None) == (model is None):
            raise PolicyError("a policy of Stable-Baselines3 comes from `path` or from `model`: give one of them")
        self._model = model
        self._squashed = False
        if path is not None:
            if any(isinstance(s, spaces.Box) and len(s.shape) > 2 for s in tree.leaves(observation_space)):
                raise PolicyError(f"{path}: a policy that sees pictures cannot be read: give a loaded `model` instead")
            try:
                self.net, self._squashed = _network_of(*_read(path))
            except Exception as error:  # of zipfile, zlib, json and torch, whatever the file is
                raise PolicyError(f"{path} cannot be read: {one_line(error, 300)}") from None
            wanted = spaces.flatdim(action_space) if isinstance(action_space, spaces.Box | spaces.Discrete) else None
            if (gives := self.net[-1].out_features) != wanted:
                raise PolicyError(f"{path} gives {gives} numbers; expected what {action_space} takes")

    def act(self, obs: Any, test: bool = False) -> Any:
        """The policy's best action."""
        if self._model is not None:
            space = self._model.observation_space
            if isinstance(space, spaces.Box):
                obs = self._flat(obs).reshape(1, *space.shape)
            return self._model.predict(tree.map_leaves(torch.Tensor.numpy, obs), deterministic=True)[0]
        flat, takes = self._flat(obs), self.net[0].in_features
        if flat.shape[1] != takes:
            raise PolicyError(f"the policy takes {takes} numbers, an observation holds {flat.shape[1]}")
        values = self.net(flat.float())[0].numpy()
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return space.start + values.argmax()
        assert isinstance(space, spaces.Box)
        if self._squashed:
            values = space.low + 0.5 * (np.tanh(values).reshape(space.shape) + 1.0) * (space.high - space.low)
        return np.clip(values.reshape(space.shape), space.low, space.high).astype(space.dtype)

    def _flat(self, obs: Any) -> torch.Tensor:
        if isinstance(self.observation_space, spaces.Discrete):
            number = obs.long() - int(self.observation_space.start)
            return nn.functional.one_hot(number, int(self.observation_space.n))
        return torch.cat([leaf.reshape(1, -1) for leaf in tree.leaves(obs)], dim=1)


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Parameters by name, and what the file says in text of how the policy was made."""
    with zipfile.ZipFile(path) as archive:
        packed = _unpacked(archive, "policy.pth", _PARAMETERS_BYTES)
        data = json.loads(_unpacked(archive, "data", _DATA_BYTES))
    try:
        state = torch.load(_checked(packed), map_location="cpu", weights_only=True)
    except Exception as error:  # of a file that is damaged, or that holds more than tensors
        raise PolicyError(f"its parameters: {one_line(error, 200)}") from None
    if not (isinstance(state, Mapping) and all(isinstance(value, torch.Tensor) for value in state.values())):
        raise PolicyError("policy.pth holds more than parameters")
    if not all(value.is_contiguous() for value in state.values()):
        raise PolicyError("parameters are as large as what the file holds of them, and these claim to be larger")
    if sum(value.nbytes for value in state.values()) > _PARAMETERS_BYTES:
        raise PolicyError(f"its parameters are larger than {_PARAMETERS_BYTES >> 20} MiB")
    return {str(name): value for name, value in state.items()}, data if isinstance(data, dict) else {}


def _unpacked(archive: zipfile.ZipFile, name: str, limit_bytes: int) -> bytes:
    """A file of an archive, which may not be what the archive's directory says of it."""
    entry = archive.getinfo(name)
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise PolicyError(f"{name} is compressed in a way that Stable-Baselines3 does not use")
    with archive.open(entry) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise PolicyError(f"{name} holds more than {limit_bytes >> 20} MiB")
    return content


def _checked(packed: bytes) -> io.BytesIO:
    """What torch has saved, written anew from what was checked of it: torch reads damaged archives in its own way."""
    if packed.count(_DIRECTORY_ENTRY) > _MOST_FILES:
        raise PolicyError(f"they are in more than {_MOST_FILES} files")
    checked, left = io.BytesIO(), _PARAMETERS_BYTES
    with zipfile.ZipFile(io.BytesIO(packed)) as archive, zipfile.ZipFile(checked, "w") as copy:
        for name in dict.fromkeys(archive.namelist()):
            is_pickle = name.endswith(".pkl")
            content = _unpacked(archive, name, min(left, _PICKLE_BYTES) if is_pickle else left)
            for code, named, _ in pickletools.genops(content) if is_pickle else ():
                if code.name == "GLOBAL" and not re.fullmatch(_NAMES, str(named)):
                    raise PolicyError(f"they name {named}")
            copy.writestr(name, content)
            left -= len(content)
    checked.seek(0)
    return checked


def _network_of(state: dict[str, torch.Tensor], data: dict[str, Any]) -> tuple[nn.Sequential, bool]:
    """The layers from observation to action, and whether their answer is squashed."""
    made_with = data.get("policy_kwargs")
    made_with = made_with if isinstance(made_with, dict) else {}
    unusual = [name for name in ("use_sde", "squash_output") if data.get(name) or made_with.get(name)]
    unusual += [name for name in state if "features_extractor" in name or "lstm" in name][:1]
    for hidden, last, activation, kind in () if unusual else _FORMS:
        numbers = sorted({int(found[1]) for name in state if (found := re.match(hidden, name))})
        prefixes = [hidden.replace("\\", "").replace("(d+)", str(number)) for number in numbers]
        if not prefixes or (last and f"{last}weight" not in state):
            continue
        if named := re.search(r"\.(\w+)'>", str(made_with.get("activation_fn", ""))):
            activation = named[1]
        if activation not in _ACTIVATIONS:
            raise PolicyError(f"its activation is {activation}; give a loaded `model` instead")
        layers: list[nn.Module] = []
        for prefix in [*prefixes, *([last] if last else [])]:
            weight, bias = state[f"{prefix}weight"], state[f"{prefix}bias"]
            takes = layers[-1].out_features if layers else weight.shape[-1]
            if weight.shape[1:] != (takes,) or bias.shape != weight.shape[:1] or not weight.numel():
                raise PolicyError(f"{prefix}weight {[*weight.shape]} does not fit the layers beside it")
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.load_state_dict({"weight": weight, "bias": bias})
            layers += [*([getattr(nn, activation)()] if layers else []), linear]
        return nn.Sequential(*layers), kind == "squashed"
    why = f" ({', '.join(unusual)})" if unusual else ""
    raise PolicyError(f"it is no MlpPolicy that can be read without unpickling{why}: give a loaded `model` instead")
