"""An agent that corrects a base controller, from a file: the pipeline, with a chain of actions and CRC debugging."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tmrl_like.config.document import find_experiment

WRAPPED = """env:
  class_path: tmrl_like.envs.ResidualEnv
  init_args:
    base: {base}
    scale: 0.5
    env:
      class_path: tmrl_like.envs.drone.DroneEnv
      init_args: {{time_step_duration: 0.01, ep_max_length: 30, act_buf_len: 4, reset_act_buf: {resets}}}

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
def wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes the drone's experiment around a base."""

    def write(base: str, resets: str = "false") -> str:
        (tmp_path / "climbing.py").write_text(CONTROLLER)
        drone = find_experiment("drone").read_text()
        start, end = drone.index("env:"), drone.index("actor:")
        file = tmp_path / "corrected.yaml"
        file.write_text(drone[:start] + WRAPPED.format(base=base, resets=resets) + drone[end + len("actor:") :])
        return str(file)

    return write


@pytest.mark.parametrize("resets", ["false", "true"])
def test_transitions_are_rebuilt_exactly_behind_a_chain(
    wrapped: Callable[..., str], command_line: Callable[..., int], capsys: pytest.CaptureFixture[str], resets: str
) -> None:
    assert command_line("check", wrapped("climbing.climb", resets), "--episodes", "3", "--delay-steps", "0") == 0
    assert "check passed" in capsys.readouterr().out


def test_a_policy_of_the_plain_environment_is_the_base(
    wrapped: Callable[..., str], command_line: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from tmrl_like.agents import SquashedGaussianActor
    from tmrl_like.envs.drone import DroneEnv, TargetInView
    from tmrl_like.policies.policy_file import describe, write_policy

    plain = DroneEnv(act_buf_len=4)
    actor = SquashedGaussianActor(plain.observation_space, plain.action_space, hidden_sizes=(8,))
    write_policy(tmp_path / "base.safetensors", actor.weights(), describe(actor, TargetInView()))
    driver = "class_path: tmrl_like.policies.file_drivers.PolicyDriver"
    file = wrapped(f"{{{driver}, init_args: {{policy: {tmp_path / 'base.safetensors'}}}}}")
    assert command_line("test", file, "--untrained", "--episodes", "1") == 0
    assert command_line("test", file, "--untrained", "--env.env.act_buf_len", "3") == 2
    assert "base.safetensors is for" in capsys.readouterr().err


def test_a_mistake_in_the_base_is_one_line_with_its_place(
    wrapped: Callable[..., str], command_line: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line("check", wrapped("climbing.clim")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "corrected.yaml" in line
    assert "clim" in line
    assert command_line("check", wrapped("climbing.climb"), "--env.scale", "3") == 2
    assert "env.init_args.scale is 3; expected more than 0, at most 2" in capsys.readouterr().err
