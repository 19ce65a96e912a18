"""`tmrl-like record` makes data sets and laps."""

import errno
import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from kit.failing import failing
from tiny import actor_that_presses

from tmrl_like.base.files import disk
from tmrl_like.cli.arguments import to_type
from tmrl_like.envs.trajectory import load_trajectory
from tmrl_like.replay import ReplayMemory
from tmrl_like.replay.data_sets import read_data_set
from tmrl_like.types import ActionSource


def test_what_a_random_policy_did_is_recorded(tmp_path, typed):
    data = tmp_path / "my data"
    said = typed("record TINY --random --episodes 6 --out", data, "--memory.memory_size=5")
    assert f"start a run with it: --memory.dataset_path {to_type(data)}" in said.out
    memory = ReplayMemory(dataset_path=data)
    actions = [float(memory.get_transition(k).act[0]) for k in range(len(memory))]
    assert 6 * 3 <= len(actions) <= 6 * 10  # more than the experiment's memory holds
    assert len(set(actions)) > 10


def test_a_random_policy_drives_whatever_it_sees(typed):
    typed("record TINY --env tiny.TalkingEnv --random --episodes 1 --out data")
    assert sum(map(len, read_data_set(Path("data")))) > 3


def test_with_a_seed_a_random_policy_does_the_same_again(typed):
    returns = [
        typed("record TINY --random --episodes 2 --seed 3 --out", data).out.split("; start")[0]
        for data in ("one", "two")
    ]
    assert returns[0] == returns[1].replace("two", "one")


DRIVERS = """
class Half:
    is_program = True
    def __init__(self, action_space, default_action): pass
    def __call__(self, obs): return [0.5]
    def close(self): pass

class Unplugged(Half):
    def __call__(self, obs): raise OSError("no gamepad")
"""


@pytest.mark.parametrize("driver", ["Half", "Unplugged"])
def test_how_many_steps_a_driver_took_over_is_said(tmp_path, typed, monkeypatch, driver):
    Path("drivers.py").write_text(DRIVERS)
    monkeypatch.syspath_prepend(tmp_path)
    # slow, so that the driver takes over within the first steps
    given = f"--env.step_s 0.02 --random --episodes 2 --out data --takeover drivers.{driver}"
    said = typed("record TINY", given).out
    samples = [sample for buffer in read_data_set(Path("data")) for sample in buffer.memory]
    taken = [sample.info.timing.source for sample in samples].count(ActionSource.PROGRAM)
    assert f"{len(samples)} samples ({taken} taken over) of 2 episodes" in said
    assert bool(taken) == (driver == "Half")


def test_what_a_stored_policy_did_is_recorded(typed):
    actor_that_presses(1.0).save("policy")
    typed("record TINY --episodes 2 --policy policy --out data")
    memory = ReplayMemory(dataset_path="data")
    ends = [memory.get_transition(k).terminated for k in range(len(memory))]
    assert ends == [False, False, True] * 2


def test_an_expert_is_the_actor_as_it_is_and_its_samples_are_demonstrations(typed):
    said = typed("record TINY --expert --episodes 1 --out data")
    assert "data: 11 samples of 1 episode; start" in said.out
    assert len(ReplayMemory(dataset_path="data")) == 10
    samples = [sample for buffer in read_data_set(Path("data")) for sample in buffer.memory]
    assert {sample.info.timing.source for sample in samples} == {ActionSource.EXPERT}


@pytest.mark.parametrize(
    ("in_the_way", "given", "said"),
    [
        ("data/0000000001.log", "--random --out data", "data"),
        ("data", "--random --out data", "data"),
        # of a data set that was deleted
        ("data.labels.csv", "--random --out data", "data.labels.csv holds labels"),
        (
            "way.npz",
            "--lap script --env filmed.Circle --out way.npz",
            "way.npz: expected the name of a new file",
        ),
        (
            "other",
            "--lap script --env filmed.Nowhere --out x.npz",
            "Nowhere does not report where",
        ),
    ],
)
def test_what_cannot_be_recorded_or_written_is_refused_before_the_first_step(
    in_the_way, given, said, tmp_path, refused, monkeypatch
):
    monkeypatch.setattr("tiny.TinyEnv.step", lambda *_: pytest.fail("it moves"))
    file = tmp_path / in_the_way
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"of yesterday")
    assert said in refused("record TINY", given)
    assert file.read_bytes() == b"of yesterday"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_a_disk_that_gets_full_keeps_the_episodes_before(refused, monkeypatch):
    writes = itertools.count()
    full_after_two = failing(errno.ENOSPC, disk.write, lambda *_: next(writes) >= 2)
    monkeypatch.setattr(disk, "write", full_after_two)
    said = refused("record TINY --random --episodes 6 --out data")
    kept = sum(map(len, read_data_set(Path("data"))))
    assert said.count("No space left on device") == 1
    assert said.endswith(f"it holds the {kept:,} samples before")
    assert kept > 0


def test_an_environment_that_fails_in_a_late_episode_costs_that_one_alone(
    tmp_path, typed, fail_in_step, monkeypatch
):
    fail_in_step(25)  # in the third episode
    monkeypatch.setattr(
        "tmrl_like.cli.record.RandomActor.act_", lambda *_, **__: np.zeros(1, np.float32)
    )
    printed = typed("record TINY --random --episodes 5 --out data", code=1)
    error = printed.err.splitlines()[-1]
    assert sum(map(len, read_data_set(Path("data")))) == 2 * 11
    assert "the arm is gone" in error
    assert f"kept in {tmp_path / 'data'}: 2 of 5 episodes" in error


def test_the_way_of_a_lap_is_recorded(typed, out_of):
    lap = "record TINY --env filmed.Circle --lap script --out"
    said = out_of(lap, "way.npz")
    small = load_trajectory("way.npz")
    assert f"{len(small)} points from" in said
    assert len(small) == pytest.approx(63, abs=2)
    assert np.linalg.norm(small, axis=1) == pytest.approx(10.0, abs=0.05)
    typed(lap, "large.npz --spacing 2.5 --env.radius 25")
    large = load_trajectory("large.npz")
    assert np.linalg.norm(large, axis=1) == pytest.approx(25.0, abs=0.1)
    assert len(large) == pytest.approx(63, abs=2)


def test_positions_of_a_lap_that_are_missing_or_not_finite_are_left_out(out_of):
    said = out_of("record TINY --env filmed.Blinking --lap script --out way.npz")
    assert "points from 99 of 101 positions" in said
    assert np.linalg.norm(load_trajectory("way.npz"), axis=1) == pytest.approx(10, 0.01)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--env filmed.Circle --spacing -1", "--spacing is -1.0; expected more than 0"),
        ("--env filmed.Circle --out .", ": expected the name of a new file"),
        ("--env filmed.Circle --env.lap_steps 999", "the lap did not end within 300 steps"),
        ("--env filmed.Driverless", "the driver failed: ValueError: no wheel ("),
    ],
)
def test_a_mistake_in_recording_a_lap_leaves_no_file(given, message, tmp_path, refused):
    assert message in refused("record TINY --lap script --out way.npz", given)
    assert list(tmp_path.iterdir()) == []


def test_a_lap_that_is_shorter_than_half_a_piece_is_kept_in_a_thousand_pieces(tmp_path, refused):
    said = refused("record TINY --env filmed.Circle --lap script --spacing 1000 --out way.npz")
    assert "choose another spacing" in said
    assert said.endswith(f"kept in {tmp_path / 'way.npz'}: 1001 points")
    points = load_trajectory("way.npz")
    assert len(points) == 1001
    assert np.linalg.norm(points, axis=1) == pytest.approx(10.0, abs=0.05)


def test_a_lap_whose_file_cannot_be_written_is_kept_elsewhere(tmp_path, refused, monkeypatch):
    Path("full").mkdir()
    is_there = lambda file, data: "full" in Path(file.name).parts  # noqa: E731
    monkeypatch.setattr(disk, "write", failing(errno.ENOSPC, disk.write, is_there))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said = refused("record TINY --env filmed.Circle --lap script --out full/way.npz")
    (kept,) = tmp_path.glob("*/*.npz")
    assert f"cannot be written to {tmp_path / 'full/way.npz'}: " in said
    assert said.endswith(f"kept in {kept}: {len(load_trajectory(kept))} points")
