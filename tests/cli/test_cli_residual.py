"""An agent that corrects a base controller, configured by a file: the whole pipeline, with a chain
of actions and CRC debugging.
"""

import pytest

from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.config.document import find_experiment
from tmrl_like.envs.drone import DroneEnv, TargetInView
from tmrl_like.policies.policy_file import describe, write_policy

WRAPPED = """env:
  class_path: tmrl_like.envs.ResidualEnv
  init_args:
    base: {base}
    scale: 0.5
    env:
      class_path: tmrl_like.envs.drone.DroneEnv
      init_args:
        {{time_step_duration: 0.01, ep_max_length: 30, act_buf_len: 4, reset_act_buf: {resets}}}

action_chain:
  class_path: tmrl_like.worker.action_chain.ActionChain
  init_args:
    parts:
    - {{class_path: tmrl_like.worker.action_chain.RateLimit, init_args: {{per_s: 20}}}}

actor:"""
CONTROLLER = '''
def climb(obs):
    """A controller."""
    return [0.0, 0.5]
'''


@pytest.fixture
def wrapped(tmp_path):
    """Return a function that writes the drone's experiment with a base controller."""

    def write(base, resets="false"):
        (tmp_path / "climbing.py").write_text(CONTROLLER)
        drone = find_experiment("drone").read_text()
        start, end = drone.index("env:"), drone.index("actor:")
        file = tmp_path / "corrected.yaml"
        file.write_text(
            drone[:start] + WRAPPED.format(base=base, resets=resets) + drone[end + len("actor:") :]
        )
        return file

    return write


@pytest.mark.parametrize("resets", ["false", "true"])
def test_transitions_are_rebuilt_exactly_behind_a_chain(wrapped, typed, resets):
    assert (
        "check passed" in typed("check", wrapped("climbing.climb", resets), "--delay-steps 0").out
    )


def test_a_policy_of_the_plain_environment_is_the_base(wrapped, typed, refused, tmp_path):
    plain = DroneEnv(act_buf_len=4)
    actor = SquashedGaussianActor(plain.observation_space, plain.action_space, hidden_sizes=(8,))
    write_policy(tmp_path / "base.safetensors", actor.weights(), describe(actor, TargetInView()))
    driver = "class_path: tmrl_like.policies.file_drivers.PolicyDriver"
    file = wrapped(f"{{{driver}, init_args: {{policy: {tmp_path / 'base.safetensors'}}}}}")
    typed("test", file, "--untrained --episodes 1")
    assert "base.safetensors is for" in refused("test", file, "--untrained --env.env.act_buf_len 3")
