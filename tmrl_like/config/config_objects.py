"""The objects of an experiment, for scripts: `import tmrl_like.config.config_objects as cfg_obj`.

Importing it does nothing. The first name that is read loads the experiment that
`config_constants.EXPERIMENT` names and imports its code. All of them are classes or partials; the
caller supplies the arguments that are still missing.

====================  ==============================================================================
name                  what it makes
====================  ==============================================================================
ENV_CLS               the environment
ACTOR, POLICY         the actor, from observation_space and action_space
MEMORY                the memory, from nb_steps and device
AGENT                 the agent, from observation_space, action_space and device
TRAINER               the training: `Trainer(training_cls=cfg_obj.TRAINER)`
SAMPLE_COMPRESSOR     none: this is the function itself, or None
OBS_PREPROCESSOR      likewise
====================  ==============================================================================
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import tmrl_like.config.config_constants as cfg
from tmrl_like.errors import ConfigError
from tmrl_like.experiment import load_experiment

_ATTRIBUTES = {
    "ENV_CLS": "env",
    "ACTOR": "actor",
    "POLICY": "actor",
    "MEMORY": "memory_cls",
    "AGENT": "agent_cls",
    "TRAINER": "training",
    "SAMPLE_COMPRESSOR": "compressor",
    "OBS_PREPROCESSOR": "obs_preprocessor",
}

_load = functools.lru_cache(maxsize=1)(load_experiment)


def __getattr__(name: str) -> Any:
    if name not in _ATTRIBUTES:
        raise AttributeError(f"module 'tmrl_like.config.config_objects' has no attribute {name!r}")
    if cfg.EXPERIMENT is None:
        raise ConfigError(
            f"config_objects.{name} belongs to an experiment, and none is named: set "
            "cfg.EXPERIMENT or the variable TMRL_LIKE_EXPERIMENT to its YAML file"
        )
    return getattr(_load(Path(cfg.EXPERIMENT)), _ATTRIBUTES[name])
