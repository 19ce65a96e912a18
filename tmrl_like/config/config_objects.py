"""The objects of an experiment, for scripts: `import tmrl_like.config.config_objects as cfg_obj`.

Importing it does nothing. The first name that is asked for reads the experiment that `config_constants.EXPERIMENT`
names and imports its code. All are classes or partials of them: what is still missing is supplied by who calls them.

====================  ==============================================================================
name                  what it makes
====================  ==============================================================================
ENV_CLS               the environment
ACTOR, POLICY         the actor, from observation_space and action_space
MEMORY                the memory, from nb_steps and device
AGENT                 the agent, from observation_space, action_space and device
TRAINER               the training: `Trainer(training_cls=cfg_obj.TRAINER)`
SAMPLE_COMPRESSOR     nothing: it is the function, or None
OBS_PREPROCESSOR      the same
====================  ==============================================================================
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tmrl_like.config.config_constants as cfg
from tmrl_like.base.factories import completed, signature_of, taken_apart
from tmrl_like.config.components import import_object
from tmrl_like.config.experiment import Experiment, Factory
from tmrl_like.config.loading import load_experiment
from tmrl_like.errors import ConfigError
from tmrl_like.trainer.options import Schedule


def training_factory(experiment: Experiment) -> functools.partial[Any]:
    """What makes the training, with the actor and the preprocessor given to all who need them."""
    training_cls = import_object("tmrl_like.trainer.schedule.TrainingOffline")
    schedule = {field.name: getattr(experiment.trainer, field.name) for field in dataclasses.fields(Schedule)}
    return functools.partial(
        training_cls,
        env_cls=experiment.env if experiment.spaces is None else experiment.spaces(),
        memory_cls=memory_factory(experiment),
        training_agent_cls=agent_factory(experiment),
        agent_scheduler=experiment.agent_scheduler,
        **schedule,
    )


def agent_factory(experiment: Experiment) -> Factory:
    """The agent, which is given the experiment's actor if it takes one (`actor_cls`)."""
    return completed(experiment.agent, actor_cls=experiment.actor)


def memory_factory(experiment: Experiment) -> Factory:
    """The memory, which is given what it shares with the worker; raises ConfigError where it does not take that."""
    shared: dict[str, Any] = {}
    if experiment.obs_preprocessor is not None:
        shared["obs_preprocessor"] = experiment.obs_preprocessor
    if experiment.crc_debug:
        shared["crc_debug"] = True
    taken = signature_of(taken_apart(experiment.memory)[0]).parameters
    for name in shared:
        if name not in taken:
            raise ConfigError(
                f"the experiment has {name}, but its memory takes no argument of that name: add it to the memory's "
                "__init__ and pass it to MemoryDataloading's"
            )
    return completed(experiment.memory, **shared)


_load = functools.lru_cache(maxsize=1)(load_experiment)

_VALUES: dict[str, Callable[[Experiment], Any]] = {
    "ENV_CLS": lambda experiment: experiment.env,
    "ACTOR": lambda experiment: experiment.actor,
    "POLICY": lambda experiment: experiment.actor,
    "MEMORY": memory_factory,
    "AGENT": agent_factory,
    "TRAINER": training_factory,
    "SAMPLE_COMPRESSOR": lambda experiment: experiment.sample_compressor,
    "OBS_PREPROCESSOR": lambda experiment: experiment.obs_preprocessor,
}


def __getattr__(name: str) -> Any:
    if name not in _VALUES:
        raise AttributeError(f"module 'tmrl_like.config.config_objects' has no attribute {name!r}")
    if cfg.EXPERIMENT is None:
        raise ConfigError(
            f"config_objects.{name} belongs to an experiment, and none is named: set cfg.EXPERIMENT or the variable "
            "TMRL_LIKE_EXPERIMENT to its YAML file"
        )
    return _VALUES[name](_load(Path(cfg.EXPERIMENT)))
