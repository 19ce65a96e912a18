import re

import pytest

from tmrl_like.config import config_constants as cfg

EXPERIMENT = """
run_name: from_the_file
crc_debug: true
env: nowhere.Env
actor: nowhere.Actor
agent: nowhere.Agent
memory: nowhere.Memory
server: {host: server.example, port: 8000, max_workers: 3}
worker: {model_history: 7, max_samples_per_episode: 500}
trainer: {profiling: true, wandb_project: theirs}
"""


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    path.write_text(EXPERIMENT)
    monkeypatch.setenv("TMRL_LIKE_EXPERIMENT", str(path))
    return path


def test_every_constant_that_is_announced_has_a_value():
    names = re.findall(r"\b[A-Z][A-Z_]+[A-Z](?=,| {2,})", cfg.__doc__)
    assert len(names) > 20
    for name in names:
        getattr(cfg, name)
    assert (cfg.MODEL_HISTORY, cfg.SERVER_IP_FOR_WORKER, cfg.PORT) == (0, "127.0.0.1", 7790)


def test_an_experiment_that_is_named_gives_the_constants(experiment):
    assert cfg.RUN_NAME == cfg.RUN_FOLDER.name == cfg.WANDB_RUN_ID == "from_the_file"
    assert (cfg.SERVER_IP_FOR_TRAINER, cfg.PORT, cfg.NB_WORKERS) == ("server.example", 8000, 3)
    assert (cfg.MODEL_HISTORY, cfg.RW_MAX_SAMPLES_PER_EPISODE, cfg.CRC_DEBUG) == (7, 500, True)
    assert (cfg.PROFILE_TRAINER, cfg.WANDB_PROJECT) == (True, "theirs")


def test_the_variable_goes_before_the_experiment_and_the_script_before_both(
    experiment, monkeypatch
):
    monkeypatch.setenv("TMRL_LIKE_RUN", "from_the_variable")
    assert cfg.RUN_FOLDER.name == "from_the_variable"
    monkeypatch.setattr(cfg, "RUN_NAME", "from_the_script", raising=False)
    assert cfg.MODEL_PATH_TRAINER.parts[-3:] == (
        "from_the_script",
        "weights",
        "trainer.safetensors",
    )


def test_all_files_are_in_the_data_folder_that_the_script_sets(monkeypatch, tmp_path):
    monkeypatch.setattr(cfg, "DATA_FOLDER", str(tmp_path / "data"), raising=False)
    assert tmp_path / "data" / "runs" / "default_run" == cfg.RUN_FOLDER
    assert cfg.CHECKPOINT_PATH.is_relative_to(cfg.RUN_FOLDER)
    assert tmp_path / "data" / "keys" == cfg.KEYS_FOLDER
