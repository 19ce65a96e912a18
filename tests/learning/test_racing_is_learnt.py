"""The racing game, learnt in real time with what ships."""

from pathlib import Path

import numpy as np
import pytest
from racing import ROOT, draw, learn

MINUTES = 10.0
# of the track; an untrained policy does 0.03
SHARE = {"racing_lidar": 0.7, "racing_image": 0.5, "racing_iqn": 0.5}


@pytest.mark.learn
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SHARE)
def test_the_game_is_driven_after_ten_minutes(name: str, tmp_path: Path) -> None:
    pytest.importorskip("Box2D")
    cv2 = pytest.importorskip("cv2")
    learnt = learn(
        ROOT / "config" / f"{name}.yaml", MINUTES, 0, tmp_path / "home", tmp_path / "lap.mp4"
    )
    draw({name: [learnt]}, tmp_path / "racing.png")
    assert (tmp_path / "racing.png").stat().st_size > 1000
    assert np.mean([drive.share for drive in learnt.final]) >= SHARE[name], learnt.summary()
    if name == "racing_iqn":
        assert any(drive.lap_s for drive in learnt.training + learnt.testing), learnt.summary()
    video = cv2.VideoCapture(str(tmp_path / "lap.mp4"))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) > 30
    assert video.read()[0]
