"""Drivers from files: a policy file, and a network as ONNX."""

import numpy as np
import pytest
from gymnasium import spaces
from kit.boxes import box
from kit.policies import written

from tmrl_like import load_policy
from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.errors import ConfigError
from tmrl_like.policies.export import write_onnx
from tmrl_like.policies.file_drivers import OnnxDriver, PolicyDriver
from tmrl_like.worker.takeover import to_action

OBS, ACT = box(1, 3), box(2, 2)
REST = np.zeros(2, np.float32)
onnx, _ = (pytest.importorskip(name) for name in ("onnx", "onnxruntime"))
PARTS = spaces.Tuple((box(1, 1), box(1, 2)))


def test_a_policy_file_drives_with_its_best_actions(tmp_path):
    path = written(
        tmp_path / "policy.safetensors", SquashedGaussianActor(OBS, ACT, hidden_sizes=(8,))
    )
    driver = PolicyDriver(ACT, REST, str(path))
    obs = np.float32([0.1, -0.2, 0.3])
    driver.reset()
    assert np.array_equal(driver(obs), load_policy(path).act(obs))
    assert driver.is_program
    driver.close()
    for acts, sees in ((box(1, 2), None), (ACT, PARTS)):
        with pytest.raises(ConfigError, match=r"policy.safetensors is for .*; the environment has"):
            PolicyDriver(acts, REST, str(path), observation_space=sees)


def test_an_onnx_file_of_ours_gets_the_items_of_a_dict_by_name_whatever_their_order(tmp_path):
    actor = SquashedGaussianActor(spaces.Dict(a=box(1, 2), b=box(1, 2)), ACT, hidden_sizes=(8,))
    policy = load_policy(written(tmp_path / "policy.safetensors", actor))
    write_onnx(policy, tmp_path / "policy.onnx")
    driver = OnnxDriver(ACT, REST, str(tmp_path / "policy.onnx"))
    obs = {"b": np.float32([0.9, -0.8]), "a": np.float32([0.1, 0.2])}
    assert np.allclose(to_action(driver(obs), ACT, "its action"), policy.act(obs), atol=1e-5)
    driver.close()
    with pytest.raises(
        ConfigError, match=r"the inputs observation.a, observation.b; the observation has 1 part"
    ):
        driver(np.zeros(3, np.float32))


DOUBLED = """
<ir_version: 8, opset_import: ["" : 17]>
doubled (float[1, 3] x) => (float[1, 2] y)
<float[3, 2] weights = {2, 0, 0, 2, 0, 0}>
{ y = MatMul(x, weights) }
"""


@pytest.fixture
def doubled(tmp_path):
    """A network by other software, whose action is the first two numbers, doubled."""
    onnx.save_model(onnx.parser.parse_model(DOUBLED), tmp_path / "d.onnx")
    return str(tmp_path / "d.onnx")


def test_an_onnx_file_with_one_input_is_given_all_numbers(doubled):
    driver = OnnxDriver(ACT, REST, doubled, obs_preprocessor=lambda obs: obs[:2])
    obs = np.float32([0.1]), np.float32([-0.2, 0.3]), np.float32([7.0])
    assert np.allclose(driver(obs), [0.2, -0.4])
    driver = OnnxDriver(box(1, 3), REST, doubled, obs_preprocessor=lambda obs: obs[:2])
    with pytest.raises(ConfigError, match="the ONNX file gives 2 numbers; an action has 3"):
        driver(obs)


def test_an_onnx_file_is_given_the_numbers_in_the_order_of_the_space(doubled):
    """As `gymnasium.wrappers.FlattenObservation` gives them to the training of other software."""
    space = spaces.Dict({"speed": box(9, 1), "angle": box(9, 2)})  # which Gymnasium sorts
    driver = OnnxDriver(ACT, REST, doubled, observation_space=space)
    obs = {"speed": np.float32([7.0]), "angle": np.float32([0.1, -0.2])}
    assert np.allclose(driver(obs), 2 * spaces.flatten(space, obs)[:2])


def test_an_onnx_file_that_is_none_is_one_line(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"no network")
    with pytest.raises(ConfigError, match=r"the ONNX file .*broken.onnx cannot be loaded"):
        OnnxDriver(ACT, REST, str(tmp_path / "broken.onnx"))
