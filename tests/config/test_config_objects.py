import sys

import pytest
from kit.fakes import CountingEnv

from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.config import config_constants as cfg
from tmrl_like.config import config_objects as cfg_obj
from tmrl_like.errors import ConfigError

EXPERIMENT = """
crc_debug: true
env: {class_path: kit.fakes.CountingEnv, init_args: {episode_steps: 3}}
actor: tmrl_like.agents.SquashedGaussianActor
agent: {class_path: tmrl_like.agents.SACAgent, init_args: {gamma: 0.5}}
memory: {class_path: tmrl_like.replay.ReplayMemory, init_args: {memory_size: 100}}
trainer: {epochs: 3, device: cpu}
"""


@pytest.fixture(autouse=True)
def experiment(tmp_path, monkeypatch):
    (tmp_path / "x.yaml").write_text(EXPERIMENT)
    monkeypatch.setattr(cfg, "EXPERIMENT", tmp_path / "x.yaml", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_objects_are_those_of_the_experiment_that_is_named():
    assert cfg_obj.ENV_CLS.func is CountingEnv
    assert cfg_obj.ACTOR is cfg_obj.POLICY is SquashedGaussianActor
    assert cfg_obj.AGENT.keywords == {"actor_cls": SquashedGaussianActor, "gamma": 0.5}
    assert cfg_obj.MEMORY.keywords["crc_debug"] is True
    assert cfg_obj.SAMPLE_COMPRESSOR is None
    assert cfg_obj.OBS_PREPROCESSOR is None


def test_the_trainer_is_the_whole_training():
    training = cfg_obj.TRAINER()
    assert (training.epochs, training.memory.memory_size, training.agent.gamma) == (3, 100, 0.5)


def test_without_an_experiment_one_line_says_how_to_name_one(monkeypatch):
    monkeypatch.setattr(cfg, "EXPERIMENT", None)
    with pytest.raises(
        ConfigError, match=r"set cfg\.EXPERIMENT or the variable TMRL_LIKE_EXPERIMENT"
    ):
        cfg_obj.TRAINER  # noqa: B018 - asking is what fails
