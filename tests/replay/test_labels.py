"""Labels of successful episodes, in a text file beside the data set."""

import numpy as np
import pytest
from kit.refusals import one_line

from tmrl_like.errors import ConfigError
from tmrl_like.replay.labels import labels_beside, pictured_episodes, read_labels, write_labels
from tmrl_like.types import Buffer, Info, Sample


def an_episode(shades, terminated, shape=(8, 9)):
    """Yield an episode's samples, whose pictures each have one shade; `shape` (): no pictures."""
    for step, shade in enumerate(shades):
        obs = (np.zeros(2, np.float32), np.full(shape, shade, np.uint8))
        ends = step == len(shades) - 1
        flags = ends and terminated, ends and not terminated
        yield Sample(0, obs if shape else obs[0], 0.0, *flags, Info(is_reset=step == 0))


def test_labels_are_read_as_they_were_written(tmp_path):
    file = labels_beside(tmp_path / "data")
    assert file.name == "data.labels.csv"
    with pytest.raises(ConfigError, match=r"labels.csv cannot be read"):
        read_labels(file, 4)
    write_labels(file, {3: False, 0: True})
    assert file.read_text() == "episode,success\n0,true\n3,false\n"
    assert read_labels(file, 4) == {0: True, 3: False}
    file.write_bytes(b"\xef\xbb\xbfepisode,success\r\n0,TRUE\r\n3,FALSE\r\n")  # a spreadsheet's
    assert read_labels(file, 4) == {0: True, 3: False}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: expected episode,success"),
        (
            "episode,success\n0,perhaps\n",
            "line 2: '0,perhaps'; expected an episode's number, and true or false",
        ),
        ("episode,success\n-1,true\n", "line 2: '-1,true'"),
        ("episode,success\n0,1\n0,0\n", "line 3: episode 0 has a label already"),
        ("episode,success\n4,true\n", "line 2: there is no episode 4, the data set has 0 to 3"),
    ],
)
def test_a_mistake_in_labels_is_one_line_with_its_place(tmp_path, text, said):
    (tmp_path / "labels.csv").write_text(text)
    with one_line(said):
        read_labels(tmp_path / "labels.csv", 4)


def test_episodes_are_what_the_camera_saw_after_each_reset():
    samples = [*an_episode([9, 1, 2], True), *an_episode([9, 3], False)]
    first, second = pictured_episodes([Buffer(samples[:2], "one"), Buffer(samples[2:], "one")])
    assert first.pictures[:, 0, 0].tolist() == [1, 2]
    assert (first.pictures.shape, first.terminated) == ((2, 8, 9), True)
    assert second.pictures[:, 0, 0].tolist() == [3]
    assert not second.terminated


def test_of_several_pictures_the_first_counts_and_its_place_is_known():
    obs = [{camera: np.full((8, 9), shade, np.uint8) for shade, camera in enumerate("ba")}]
    samples = [Sample(0, obs, 0.0, step == 1, False, Info(is_reset=step == 0)) for step in (0, 1)]
    (episode,) = pictured_episodes([Buffer(samples, "one")])
    assert (episode.path, episode.pictures[0, 0, 0]) == ((0, "b"), 0)


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([*an_episode([0, 1], True, ())], "the data set has no pictures"),
        ([*an_episode([0, 1], True, (7, 9))], "the data set has no pictures"),
        ([*an_episode([0, 1], True, (9, 9, 7, 7))], "the data set has no pictures"),
        ([*an_episode([0], True)], "the data set has no step"),
        (
            [*an_episode([0, 1], True), *an_episode([0, 1], True, (9, 9))],
            "pictures of several shapes",
        ),
    ],
)
def test_what_has_no_pictures_is_one_line(samples, said):
    with pytest.raises(ConfigError, match=said):
        pictured_episodes([Buffer(samples, "one")])
