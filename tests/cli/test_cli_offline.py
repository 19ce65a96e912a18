"""`tmrl-like trainer --offline` makes a policy from a recording, without server and worker."""

from pathlib import Path

import pytest
from cli_commands import TINY, summary_of

from tmrl_like.cli.arguments import to_type

HAS_DONE_ITS_EPOCH = (
    "this run has done its 1 epoch: raise epochs (--trainer.epochs) to go on, choose another "
    "run_name, or start over with resume none (--trainer.resume none; of `run`: --fresh)"
)
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
def mean_return(typed):
    """Return a function that runs `tmrl-like test` and returns the mean return."""
    return lambda *arguments: float(summary_of(typed("test", *arguments).out)[1])


@pytest.fixture
def recorded(typed):
    """Return a function that records a random policy and returns the option that uses the
    recording.
    """

    def record(experiment, episodes):
        typed("record", experiment, "--random --out data --episodes", episodes)
        return "--memory.dataset_path=data"

    return record


def test_a_recording_is_trained_on_and_the_policy_tested(
    recorded, own_home, typed, refused, mean_return, monkeypatch
):
    given = (TINY, recorded(TINY, 5), "--run_name=recorded")
    typed("trainer", *given, "--offline")
    folder = own_home / ".tmrl_like" / "runs" / "recorded"
    assert {"checkpoints", "experiment.yaml", "metrics.jsonl", "policies"} <= {
        p.name for p in folder.iterdir()
    }
    assert not (own_home / ".tmrl_like" / "keys").exists()
    with monkeypatch.context() as patch:  # done: reported before anything starts
        patch.setattr("tmrl_like.cli.run.Family.start", refuse)
        patch.setattr("tmrl_like.cli.train.Trainer", refuse)
        for words in (
            ["trainer", *given, "--offline"],
            ["run", *given],
            ["run", *given, "--in-process"],
        ):
            assert typed(*words, code=2) == ("", f"tmrl-like: error: {HAS_DONE_ITS_EPOCH}\n")
    typed("trainer", *given, "--offline --trainer.epochs 2")
    untrained = mean_return(TINY, "--untrained", "--episodes", "2")
    assert mean_return(*given, "--episodes", "2") > untrained + 5


@pytest.mark.learn
def test_the_pendulum_is_learnt_from_what_a_random_policy_did(recorded, typed, mean_return):
    steps = ("--trainer.epochs=1", "--trainer.rounds=6", "--trainer.steps=500")
    typed("trainer pendulum --offline", recorded("pendulum", 50), *steps)
    assert mean_return("pendulum", "--episodes", "10") > -400


def test_an_encoder_of_recorded_pictures_is_trained_beforehand(
    tmp_path, recorded, typed, refused, monkeypatch
):
    monkeypatch.setattr("tmrl_like.cli.train.ENCODER_STEPS", 20)
    Path("lights.py").write_text(LIGHTS)
    Path("lights.yaml").write_text(SEEN)
    file, given = tmp_path / "my lights.safetensors", recorded("lights.yaml", 3)
    said = typed("trainer lights.yaml --encoder", file, given).out
    assert f"{file}: from 24 samples; it keeps " in said
    assert said.endswith(f"start a run with it: --agent.picture_encoder {to_type(file)}\n")
    typed("trainer lights.yaml --offline", given, "--agent.picture_encoder", file)
    error = refused("trainer lights.yaml --encoder lights", given)
    assert "a name that ends in .safetensors" in error
