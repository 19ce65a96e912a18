"""`tmrl-like trainer --offline` makes a policy from a recording, without server and worker."""

from pathlib import Path

import pytest
from cli_commands import summary_of

from tmrl_like.cli.arguments import to_type

HAS_DONE_ITS_EPOCH = (
    "this run has done its 1 epoch: raise epochs (--trainer.epochs) to go on, choose another "
    "run_name, or start over with resume none (--trainer.resume none; of `run`: --fresh)"
)
RECORDED = "TINY --memory.dataset_path=data --run_name=recorded"
LIGHTS = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Lights(gymnasium.Env):
    observation_space = spaces.Box(0, 255, (1, 16, 16), np.uint8)
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def reset(self, seed=None, options=None):
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), float(action[0]), False, self.steps == 8, {}
"""
SEEN = """
env: lights.Lights
actor: {class_path: tmrl_like.agents.SquashedGaussianActor, init_args: {hidden_sizes: [8]}}
agent: {class_path: tmrl_like.agents.SACAgent}
memory: {class_path: tmrl_like.replay.ReplayMemory, init_args: {batch_size: 8, memory_size: 1000}}
trainer: {epochs: 1, rounds: 1, steps: 2}
"""


def refuse(*arguments, **options):
    raise AssertionError("nothing is to be connected or started")


@pytest.fixture(autouse=True)
def no_connection(monkeypatch):
    monkeypatch.setattr("tmrl_like.trainer.connecting.dial", refuse)


@pytest.fixture
def mean_return(out_of):
    """Return a function that runs `tmrl-like test` and returns the mean return."""
    return lambda *arguments: float(summary_of(out_of("test", *arguments))[1])


def test_a_recording_is_trained_on_and_the_policy_tested(own_home, typed, mean_return, monkeypatch):
    typed("record TINY --random --episodes 5 --out data")
    typed("trainer --offline", RECORDED)
    folder = own_home / ".tmrl_like/runs/recorded"
    assert {"checkpoints", "experiment.yaml", "metrics.jsonl", "policies"} <= {
        p.name for p in folder.iterdir()
    }
    assert not (own_home / ".tmrl_like/keys").exists()
    with monkeypatch.context() as patch:  # done: reported before anything starts
        patch.setattr("tmrl_like.cli.run.Family.start", refuse)
        patch.setattr("tmrl_like.cli.train.Trainer", refuse)
        for command in ("trainer --offline", "run", "run --in-process"):
            printed = typed(command, RECORDED, code=2)
            assert printed == ("", f"tmrl-like: error: {HAS_DONE_ITS_EPOCH}\n")
    typed("trainer --offline --trainer.epochs 2", RECORDED)
    untrained = mean_return("TINY --untrained --episodes 2")
    assert mean_return(RECORDED, "--episodes 2") > untrained + 5


@pytest.mark.learn
def test_the_pendulum_is_learnt_from_what_a_random_policy_did(typed, mean_return):
    typed("record pendulum --random --episodes 50 --out data")
    short = "--trainer.epochs=1 --trainer.rounds=6 --trainer.steps=500"
    typed("trainer pendulum --offline --memory.dataset_path=data", short)
    assert mean_return("pendulum --episodes 10") > -400


def test_an_encoder_of_recorded_pictures_is_trained_beforehand(
    tmp_path, typed, out_of, refused, monkeypatch
):
    monkeypatch.setattr("tmrl_like.cli.train.ENCODER_STEPS", 20)
    Path("lights.py").write_text(LIGHTS)
    Path("lights.yaml").write_text(SEEN)
    typed("record lights.yaml --random --episodes 3 --out data")
    trainer = "trainer lights.yaml --memory.dataset_path=data"
    file = tmp_path / "my lights.safetensors"
    said = out_of(trainer, "--encoder", file)
    assert f"{file}: from 24 samples; it keeps " in said
    assert said.endswith(f"start a run with it: --agent.picture_encoder {to_type(file)}\n")
    typed(trainer, "--offline --agent.picture_encoder", file)
    assert "a name that ends in .safetensors" in refused(trainer, "--encoder lights")
