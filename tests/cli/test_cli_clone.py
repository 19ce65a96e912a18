"""From a recording to a policy with which a training starts."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tmrl_like import load_policy
from tmrl_like.agents import cloning
from tmrl_like.cli.arguments import to_type
from tmrl_like.policies.policy_file import read_policy

HALF = """
class Half:
    is_program = True
    def __init__(self, action_space, default_action): pass
    def __call__(self, obs): return [0.5]
    def close(self): pass
"""


SAC = "TINY --actor tmrl_like.agents.SquashedGaussianActor --agent tmrl_like.agents.SACAgent"
SLOW = f"{SAC} --env.step_s 0.02"  # so that a driver takes over within the first steps


def test_what_a_driver_showed_is_cloned_and_a_training_starts_from_it(
    tmp_path, typed, out_of, free_port, monkeypatch
):
    Path("half.py").write_text(HALF)
    monkeypatch.syspath_prepend(tmp_path)
    policy = tmp_path / "my half.safetensors"
    typed("record", SLOW, "--random --episodes 8 --out data --takeover half.Half")
    out = out_of("clone", SLOW, "data --out", policy, "--steps 300 --held-out 0.25")
    assert "of 6 episodes" in out
    assert "of 2 episodes were held out" in out
    named = to_type(policy)
    assert out.endswith(f" --policy {named}\nstart a run with it: --trainer.init_policy {named}\n")
    for words in (line.split() for line in out.splitlines() if line.startswith("  ")):
        at_first, in_the_end = map(float, words[-2:])
        assert in_the_end > at_first + 1.0
    assert read_policy(policy)[0].training_steps == 300
    assert load_policy(policy).act(np.zeros(2, np.float32)).item() == pytest.approx(0.5, abs=0.1)
    typed("test", SLOW, "--policy", policy, "--episodes 1")
    where = ("--server.port", free_port, "--memory.dataset_path data --offline")
    typed("trainer", SLOW, *where, "--trainer.init_policy", policy, "--trainer.steps 5")


PAST = """
import gymnasium, numpy as np
from gymnasium import spaces

ONE = spaces.Box(-1, 1, (1,))

class Past(gymnasium.Env):
    observation_space, action_space = spaces.Tuple((ONE, ONE, ONE)), ONE
    def reset(self, **options):
        self.past, self.steps = [np.zeros(1, np.float32)] * 2, 0
        return self.obs(), {}
    def step(self, action):
        self.past, self.steps = [self.past[1], np.array(action)], self.steps + 1
        return self.obs(), 0.0, False, self.steps == 5, {}
    def obs(self):
        return np.random.uniform(-1, 1, 1).astype(np.float32), *self.past

class Said(Past):
    @staticmethod
    def memory_arguments(arguments):
        return {"act_buf_len": 2}

def kept(obs):
    return tuple(obs)

def dropped(obs):
    return obs[:1]

def joined(obs):
    return np.concatenate(obs)
"""


@pytest.mark.parametrize(
    ("given", "past_actions"),
    [
        ("--env past.Said", 2),
        ("--env past.Past", 0),
        ("--env past.Past --memory.act_buf_len 2", 2),
        ("--env past.Said --sample_compressor null", 2),
        ("--env past.Said --obs_preprocessor past.kept", 2),
        ("--env past.Said --obs_preprocessor past.dropped", 0),
        ("--env past.Said --obs_preprocessor past.joined", 0),
    ],
)
def test_the_past_actions_are_those_that_the_actor_sees(
    tmp_path, typed, monkeypatch, given, past_actions
):
    Path("past.py").write_text(PAST)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "past", raising=False)
    seen = []

    def clone(actor, *shown):
        seen.extend(part.past_actions for part in shown[:2])
        return cloning.Likelihood(0.0, 0.0), cloning.Likelihood(0.0, 0.0)

    monkeypatch.setattr("tmrl_like.cli.clone.clone", clone)
    typed("record", SAC, "--random --episodes 2 --out data", given)
    typed("clone", SAC, "data --out a.safetensors", given)
    assert seen == [past_actions] * 2


def test_a_data_set_of_another_environment_is_refused(typed, refused):
    typed("record pendulum --random --episodes 2 --out data")
    error = refused("clone", SAC, "data --steps 2 --out a.safetensors", code=1)
    assert (
        "does not fit this ReplayMemory: obs has arrays of the shapes [(3,)]; expected [(2,)]"
        in error
    )
    assert not Path("a.safetensors").exists()
