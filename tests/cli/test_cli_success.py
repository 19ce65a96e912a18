"""From recorded episodes to a reward: a person labels them, a model learns from the labels, and an
environment ends episodes by the model.
"""

from pathlib import Path
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from cli_commands import TINY
from gymnasium.spaces import Tuple
from kit.refusals import one_line
from pictured import Lamp

from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.agents.success_training import SuccessNetwork
from tmrl_like.cli import label
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.policies.success_model import SuccessModel, SuccessSpec, write_success_model
from tmrl_like.policies.weights import copied

SHORT = "--steps 60 --last 3"


@pytest.fixture
def data(typed):
    """The name of a recording in the working folder, of eight episodes, every other one a
    success.
    """
    typed("record TINY --env pictured.Lamp --random --episodes 8 --out data")
    return "data"


def labels_of(data):
    return Path(f"{data}.labels.csv").read_text().split()[1:]


ENDS = [f"{episode},{'true' if episode % 2 else 'false'}" for episode in range(8)]


def test_what_is_labelled_and_learnt_is_the_reward_of_an_environment(data, typed, out_of):
    said = out_of("label", data, "--terminated")
    assert "success: 4, failure: 4, no label: 0" in said
    assert said.endswith(
        "learn from it: tmrl-like success-model data --out success_1.safetensors\n"
    )
    assert labels_of(data) == ENDS
    out = out_of("success-model", data, "--out lamp.safetensors", SHORT)
    assert "of 2 episodes that were held out, 3 frames in a row" in out
    assert "      0.5  100.0%                0                0" in out
    plain = Path(TINY).read_text()
    wrapped = """env:
  class_path: tmrl_like.envs.SuccessEnv
  init_args:
    reward: 5.0
    model:
      class_path: tmrl_like.policies.success_model.SuccessModel
      init_args: {file: lamp.safetensors}
    env: {class_path: pictured.Lamp, init_args: {ends: false}}
"""
    Path("task.yaml").write_text(plain.replace("env: tiny.TinyEnv\n", wrapped))
    typed("record task.yaml --random --episodes 4 --out judged")
    Path("success_1.safetensors").touch()
    assert out_of("label judged --terminated").endswith(" --out success_2.safetensors\n")
    assert labels_of("judged") == ENDS[:4]
    checked = typed("check task.yaml --delay-steps 0")
    assert "check passed" in checked.out
    said = "lamp.safetensors: 2 held-out episodes, 3 frames in a row: 100.0% right at 0.5 (0 false"
    assert said in checked.err


def window(keys):
    """Return a stand-in for OpenCV, in whose window these keys are pressed."""
    return Mock(
        WINDOW_AUTOSIZE=0,
        WINDOW_GUI_NORMAL=0,
        cvtColor=lambda picture, _: picture,
        waitKey=Mock(side_effect=map(ord, keys)),
        getWindowProperty=lambda *_: 1,
    )


def test_a_person_labels_what_has_no_label_in_a_window(data, out_of, monkeypatch):
    monkeypatch.setattr(label, "has_display", lambda: True)
    first, second = window("sx fq"), window("fffffff")
    monkeypatch.setattr(label, "load_opencv", lambda: first)
    assert "success: 1, failure: 1, no label: 6" in out_of("label", data, "--last 2")
    assert labels_of(data) == ["0,true", "2,false"]
    assert first.imshow.call_args_list[0].args[1].shape == (384, 768, 3)
    monkeypatch.setattr(label, "load_opencv", lambda: second)
    assert "success: 1, failure: 7, no label: 0" in out_of("label", data)
    assert second.imshow.call_count == 6


@pytest.mark.parametrize("shape", [(8, 9), (8, 9, 2), (8, 9, 4), (3, 8, 9), (2, 8, 9, 3)])
def test_a_picture_of_any_form_is_shown(shape):
    shown = label.as_rgb(np.arange(np.prod(shape), dtype=np.uint8).reshape(shape))
    assert (shown.shape, shown.dtype) == ((8, 9, 3), np.uint8)


def test_labels_are_taken_from_a_file_that_is_checked(data, typed, refused):
    Path("mine.csv").write_text("episode,success\n1,1\n")
    typed("label", data, "--file mine.csv")
    assert labels_of(data) == ["1,true"]
    Path("mine.csv").write_text("episode,success\n8,true\n")
    assert "mine.csv, line 2: there is no episode 8, the data set has 0 to 7" in refused(
        "label", data, "--file mine.csv"
    )
    assert labels_of(data) == ["1,true"]


def test_what_cannot_be_is_one_line(data, refused, monkeypatch):
    monkeypatch.setattr(label, "has_display", lambda: False)
    assert "there is no display to show episodes on; --file FILE" in refused("label", data)
    learn = "success-model", data, "--out a.safetensors"
    assert "has no labels yet: `tmrl-like label" in refused(*learn)
    assert "--held-out is 1" in refused(*learn, "--held-out 1")


def test_a_file_that_is_no_model_of_success_or_for_other_pictures_is_one_line():
    file, space = Path("a.safetensors"), Lamp.observation_space
    network = SuccessNetwork(space[1].shape)
    weights = copied(network.state_dict()).content
    SquashedGaussianActor(space, Lamp.action_space).save(file)
    told = "is no model of success, or an earlier version's: learn it again"
    with one_line(rf"a\.safetensors {told}", PolicyError):
        SuccessModel(str(file), space)
    spec = SuccessSpec(network.spec.picture, (1,))
    huge = msgspec.structs.replace(spec.picture, shape=(64, 1 << 40, 3))
    write_success_model(file, SuccessSpec(huge, (1,)), weights)
    with pytest.raises(ConfigError, match="looks at pictures, uint8"):  # nothing is made for it
        SuccessModel(str(file), space)
    write_success_model(file, spec, weights)
    for other in (space[1], Tuple([space[0], space[0]])):
        with one_line(r"looks at pictures, uint8 \[16, 16, 3\], in obs\[1\]$"):
            SuccessModel(str(file), other)
