"""The included experiments of the racing game and Doom learn in real time."""

import numpy as np
import pytest
from kit.pythons import ROOT
from racing import command_line, episodes_of, learn

# share of the track; an untrained policy reaches 0.03
SHARE = {"racing_lidar": 0.7, "racing_image": 0.5, "racing_iqn": 0.5}
KILLS = 10  # an untrained policy reaches one or two


@pytest.mark.learn
@pytest.mark.timeout(1500)  # ten minutes, and ten test episodes of one at most
@pytest.mark.parametrize("name", SHARE)
def test_the_game_is_driven_after_ten_minutes(name, tmp_path):
    pytest.importorskip("Box2D")
    learnt = learn(ROOT / "config" / f"{name}.yaml", 10.0, 0, tmp_path)
    assert np.mean([drive.share for drive in learnt.final]) >= SHARE[name], str(learnt)
    if name == "racing_iqn":
        assert any(drive.lap_s > 0 for drive in learnt.training + learnt.testing), str(learnt)


@pytest.mark.learn
@pytest.mark.timeout(2400)
def test_monsters_are_shot_after_the_training_that_ships(tmp_path):
    pytest.importorskip("vizdoom")
    experiment = ROOT / "config" / "vizdoom_iqn.yaml"
    command_line("run", experiment, "--seed", "0", home=tmp_path)
    episodes = episodes_of(command_line("test", experiment, "--episodes", "20", home=tmp_path))
    # the reward is 1 for a kill, -1 for the player's own death
    kills = [return_ + died for return_, _, died in episodes]
    assert len(kills) == 20
    assert np.mean(kills) >= KILLS, kills
