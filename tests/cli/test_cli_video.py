from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli_commands import TINY
from tiny import TinyActor, TinyEnv

from tmrl_like.base.files import write_atomically
from tmrl_like.cli.filming import Filming
from tmrl_like.envs.trajectory import load_trajectory

CommandLine = Callable[..., int]
FILMED = "--env=filmed.Filmed"


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
    assert "--video needs a picture" in error
    assert len([line for line in error.splitlines() if "error" in line]) == 1
    assert not file.exists()


@pytest.mark.parametrize("name", ["drive.avi", "missing/drive.mp4"])
def test_a_video_that_cannot_be_written_is_one_line(
    name: str, tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line("test", TINY, FILMED, "--untrained", "--video", str(tmp_path / name)) == 2
    assert "ending in .mp4, in a folder that exists" in capsys.readouterr().err


def test_the_way_of_a_demonstration_is_recorded(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "way.npz"
    assert command_line("record-reward", TINY, FILMED, "--output", str(file)) == 0
    assert "64 points from 100 positions" in capsys.readouterr().out
    small = load_trajectory(file)
    assert np.linalg.norm(small, axis=1) == pytest.approx(10.0, abs=0.05)
    options = ("--driver", "keyboard", "--spacing", "2.5", "--env.step_s", "5")
    assert command_line("record-reward", TINY, FILMED, *options, "--output", str(file)) == 0
    large = load_trajectory(file)
    assert np.linalg.norm(large, axis=1) == pytest.approx(25.0, abs=0.05)
    assert len(large) == 64


def test_mistakes_in_recording_are_one_line_each(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--output", str(tmp_path / "way.npz"))
    for arguments, message in [
        ((TINY, *out), "cannot record a demonstration"),
        ((TINY, FILMED), "--output"),
        ((TINY, FILMED, *out, "--driver", "ghost"), "there is no 'ghost'"),
        ((TINY, FILMED, *out, "--spacing", "-1"), "not a length"),
        ((TINY, FILMED, *out, "--spacing", "1000"), "choose another spacing"),
        ((TINY, FILMED, *out, "--spacing", "1e-12"), "choose another spacing"),
        ((TINY, FILMED, "--output", str(tmp_path)), "expected the name of a file"),
    ]:
        assert command_line("record-reward", *arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def film(own_home: Path, tmp_path: Path, until: Callable[..., None], *more: str) -> list[tuple[int, str]]:
    """What is said of the video after ten minutes, of a run that films every four; and how many there are."""
    policy = own_home / "policy.safetensors"
    write_atomically(policy, TinyActor(TinyEnv.observation_space, TinyEnv.action_space).weights())
    minutes, said = iter([1.0, 3.9, 10.0]), []
    logger, handler = logging.getLogger("tmrl_like.trainer"), logging.Handler()
    handler.emit = lambda record: said.append((record.levelno, record.getMessage()))  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with Filming([TINY, FILMED, *more], policy, tmp_path / "videos", 4.0, lambda: 60 * next(minutes, 11.9)):
            until(lambda: said)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    return said


def test_a_test_episode_is_filmed_every_so_many_minutes(
    own_home: Path, tmp_path: Path, until: Callable[..., None]
) -> None:
    ((_, said),) = film(own_home, tmp_path, until)
    (file,) = (tmp_path / "videos").iterdir()
    assert said == f"filmed the policy of 10:00 of training: {file}"
    assert file.name == "00010.0-minutes.mp4"
    assert file.stat().st_size > 1000


@pytest.mark.long
def test_what_there_is_one_of_only_is_not_filmed(own_home: Path, tmp_path: Path, until: Callable[..., None]) -> None:
    ((level, said),) = film(own_home, tmp_path, until, "--env=filmed.OnlyOne")
    assert level == logging.WARNING
    assert "no test videos any more: trainer.video_every_minutes films an environment of its own" in said
    assert not list((tmp_path / "videos").iterdir())
