"""An agent that corrects a base controller, configured by a file: the whole pipeline, with a chain
of actions and CRC debugging.
"""

import re

from tmrl_like.config.document import find_experiment

WRAPPED = """env:
  class_path: tmrl_like.envs.ResidualEnv
  init_args:
    base: climbing.climb
    scale: 0.5
    env:
      class_path: tmrl_like.envs.drone.DroneEnv
      init_args: {time_step_duration: 0.01, ep_max_length: 30, act_buf_len: 4}

action_chain:
  class_path: tmrl_like.worker.action_chain.ActionChain
  init_args:
    parts:
    - {class_path: tmrl_like.worker.action_chain.RateLimit, init_args: {per_s: 20}}

actor:"""
CONTROLLER = '''
def climb(obs):
    """A controller."""
    return [0.0, 0.5]
'''


def test_transitions_are_rebuilt_exactly_behind_a_chain(tmp_path, typed):
    (tmp_path / "climbing.py").write_text(CONTROLLER)
    drone = find_experiment("drone").read_text()
    _, plain, _ = re.split("^env:|^actor:", drone, flags=re.MULTILINE)
    file = tmp_path / "corrected.yaml"
    file.write_text(drone.replace(f"env:{plain}actor:", WRAPPED))
    assert "check passed" in typed("check", file, "--delay-steps 0").out
