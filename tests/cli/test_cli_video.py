from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli_commands import TINY

from tmrl_like.envs.trajectory import load_trajectory

CommandLine = Callable[..., int]
FILMED = "--env=filmed.Filmed"
CIRCLE = "--env=filmed.Circle"


def test_the_first_test_episode_is_filmed(tmp_path: Path, command_line: CommandLine) -> None:
    import cv2

    file = tmp_path / "drive.mp4"
    assert command_line("test", TINY, FILMED, "--untrained", "--episodes", "2", "--video", str(file)) == 0
    video = cv2.VideoCapture(str(file))
    pictures = []
    while (read := video.read())[0]:
        pictures.append(read[1])
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(10.0)
    assert [p.shape for p in pictures] == [(384, 512, 3)] * 10  # enlarged
    assert [p.mean() for p in pictures] == pytest.approx(20.0 * np.arange(1, 11), abs=6)


def test_an_environment_without_a_picture_is_one_line_and_no_file(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "drive.mp4"
    assert command_line("test", TINY, "--untrained", "--video", str(file)) == 2
    error = capsys.readouterr().err
    assert "there is nothing to draw" in error
    assert len([line for line in error.splitlines() if "error" in line]) == 1
    assert not file.exists()


def test_the_way_of_a_lap_is_recorded(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "way.npz"
    lap = ("record", TINY, "--env=filmed.Circle", "--lap", "script", "--out", str(file))
    assert command_line(*lap) == 0
    said = capsys.readouterr().out
    small = load_trajectory(file)
    assert f"{len(small)} points from" in said
    assert len(small) == pytest.approx(63, abs=2)
    assert np.linalg.norm(small, axis=1) == pytest.approx(10.0, abs=0.05)
    assert command_line(*lap, "--spacing", "2.5", "--env.radius", "25") == 0
    large = load_trajectory(file)
    assert np.linalg.norm(large, axis=1) == pytest.approx(25.0, abs=0.1)
    assert len(large) == pytest.approx(63, abs=2)


def test_mistakes_in_recording_are_one_line_each(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    lap = ("--lap", "script")
    out = (*lap, "--out", str(tmp_path / "way.npz"))
    for arguments, message in [
        ((TINY, *out), "script drives no lap of TinyEnv; expected nobody"),
        ((TINY, CIRCLE, *lap), "--out"),
        ((TINY, CIRCLE, *out, "--lap", "ghost"), "there is no 'ghost'"),
        ((TINY, CIRCLE, *out, "--spacing", "-1"), "--spacing is -1.0; expected more than 0"),
        ((TINY, CIRCLE, *out, "--spacing", "1000"), "choose another spacing"),
        ((TINY, CIRCLE, *out, "--spacing", "1e-12"), "choose another spacing"),
        ((TINY, CIRCLE, *lap, "--out", str(tmp_path)), "expected the name of a file"),
        ((TINY, "--env=filmed.Still", *out), "the lap did not end within 300 steps"),
    ]:
        assert command_line("record", *arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len([line for line in error.splitlines() if "INFO" not in line]) == 1
    assert list(tmp_path.iterdir()) == []
