"""Constructors accept the documented arguments, in the documented positional order, with the
documented defaults.
"""

import functools
import inspect
import math

import pytest
from house import alone
from kit.fakes import CountingAgent, CountingEnv, ListMemory

from tmrl_like import MemoryDataloading, RolloutWorker, Trainer, TrainingOffline
from tmrl_like.base.factories import signature_of
from tmrl_like.config.paths import RunPath
from tmrl_like.errors import ConfigError

NEEDED = inspect.Parameter.empty
POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
ORDER = {
    TrainingOffline: {
        "env_cls": None,
        "memory_cls": None,
        "training_agent_cls": None,
        "epochs": 10,
        "rounds": 50,
        "steps": 2000,
        "update_model_interval": 100,
        "update_buffer_interval": 100,
        "max_training_steps_per_env_step": 1.0,
        "sleep_between_buffer_retrieval_attempts": 0.1,
        "profiling": False,
        "agent_scheduler": None,
        "start_training": 0,
        "device": None,
    },
    RolloutWorker: {
        "env_cls": NEEDED,
        "actor_module_cls": NEEDED,
        "sample_compressor": None,
        "device": None,  # by the options: the CPU
        "server_ip": None,
        "min_samples_per_worker_packet": None,  # by the options: 1
        "max_samples_per_episode": None,  # by the options: unlimited
        "model_path": RunPath.OF_RUN,
        "obs_preprocessor": None,
        "crc_debug": False,
        "model_path_history": RunPath.OF_RUN,
        "model_history": None,  # by the configuration
        "standalone": False,
    },
    Trainer: {
        "training_cls": NEEDED,
        "server_ip": None,
        "model_path": RunPath.OF_RUN,
        "checkpoint_path": RunPath.OF_RUN,
        "dump_run_instance_fn": None,
        "load_run_instance_fn": None,
        "updater_fn": None,
    },
    MemoryDataloading: {
        "device": "cpu",
        "nb_steps": 1,
        "obs_preprocessor": None,
        "sample_preprocessor": None,
        "memory_size": 1_000_000,
        "batch_size": 256,
        "dataset_path": "",
        "crc_debug": False,
    },
}


@pytest.mark.parametrize("cls", [RolloutWorker, Trainer, MemoryDataloading])
def test_arguments_by_position_are_those_of_the_users_document(cls):
    taken = inspect.signature(cls).parameters.values()
    assert {p.name: p.default for p in taken if p.kind is POSITIONAL} == ORDER[cls]
    assert [p.name for p in taken if p.kind is POSITIONAL] == [*ORDER[cls]]


def test_a_training_takes_its_fields_by_position_and_the_others_by_name():
    def schedule(agent, epoch):
        pass

    numbers = (math.inf, 3, 7, 2, 4, 0.5, 0.25, False)
    given = (CountingEnv, ListMemory, CountingAgent, *numbers, schedule, 9, "cpu")
    training = TrainingOffline(*given, reward_window=30)
    assert tuple(getattr(training, name) for name in ORDER[TrainingOffline]) == given
    assert training.reward_window == 30


def test_a_training_has_the_defaults_of_the_users_document_and_no_argument_twice():
    taken = signature_of(TrainingOffline).parameters
    assert {name: taken[name].default for name in ORDER[TrainingOffline]} == ORDER[TrainingOffline]
    parts = CountingEnv, ListMemory, CountingAgent
    for wrong in (
        functools.partial(TrainingOffline, *parts, 10, epochs=9),
        functools.partial(TrainingOffline, *range(15)),
    ):
        with pytest.raises((TypeError, ValueError)):
            wrong()


def test_what_lockstep_no_longer_takes_names_what_serves_in_its_place():
    gone = pytest.raises(
        ConfigError, match="takes no max_steps_per_update; the ratio is the training's: max_train"
    )
    with alone() as worker, gone:
        worker.run_synchronous(0, 10, 1, math.inf)
