"""The racing game, learnt in real time with what ships: config/racing_lidar.yaml and config/racing_image.yaml."""

from pathlib import Path

import numpy as np
import pytest
from racing import draw, learn

MINUTES = 10.0
SHARE = {"lidar": 0.7, "image": 0.5}  # of the track, on average; an untrained policy does 0.03


@pytest.mark.learn
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seen", ["lidar", "image"])
def test_the_game_is_driven_after_ten_minutes(seen: str, tmp_path: Path) -> None:
    pytest.importorskip("Box2D")
    cv2 = pytest.importorskip("cv2")
    learnt = learn(seen, MINUTES, 0, tmp_path / "home", tmp_path / "lap.mp4")
    draw(learnt, tmp_path / "racing.png")
    assert (tmp_path / "racing.png").stat().st_size > 1000
    assert np.mean(learnt.final) >= SHARE[seen]
    video = cv2.VideoCapture(str(tmp_path / "lap.mp4"))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) > 30
    assert video.read()[0]
