"""Doom's defend_the_center, learnt in real time with what ships."""

from pathlib import Path

import numpy as np
import pytest
from racing import ROOT, command_line, episodes_of

KILLS = 10  # an untrained policy: one or two


@pytest.mark.learn
@pytest.mark.timeout(2400)
def test_monsters_are_shot_after_the_training_that_ships(tmp_path: Path) -> None:
    pytest.importorskip("vizdoom")
    experiment = ROOT / "config" / "vizdoom_iqn.yaml"
    command_line("run", experiment, "--seed", "0", home=tmp_path)
    episodes = episodes_of(command_line("test", experiment, "--episodes", "20", home=tmp_path))
    # the reward: 1 for a kill, -1 for the own death
    kills = [return_ + died for return_, _, died in episodes]
    assert len(kills) == 20
    assert np.mean(kills) >= KILLS, kills
