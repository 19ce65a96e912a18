import dataclasses
import json
from collections import deque

import numpy as np
import pytest
from kit.refusals import one_line

from tmrl_like.base import tree
from tmrl_like.rollouts import Rollout
from tmrl_like.rollouts.rollout import rollout_of


def steps_of(count, **info):
    """Return a reset at 5 s and steps 0.5 s apart; `info` computes each item from the step's
    number.
    """
    steps = deque([(None, 0.0, {}, 0, 0, 5.0, np.zeros(2))])
    for t in range(1, count + 1):
        action, known = {"a": np.array([t, -t]), "b": (t,)}, {n: f(t) for n, f in info.items()}
        steps.append((action, 0.25 * t, known, t, 1, 5 + t / 2, np.array([t, 2.0 * t])))
    return steps


def drive(times_s, progress, time_step_s=0.1):
    """Return a rollout that had come so far at these times."""
    none = np.zeros(len(times_s))
    return Rollout(
        actions=none,
        rewards=none,
        info={"progress": np.array(progress)},
        policy_versions=none,
        sources=none,
        times_s=np.array(times_s),
        time_step_s=time_step_s,
    )


def test_each_column_has_a_row_per_action_and_a_file_holds_all_of_it(tmp_path):
    count = 200
    info = {"progress": np.float32, "a/b": lambda t: np.full((2, 3), t % 256, np.uint8)}
    made = rollout_of(steps_of(count, **info), worker="w", test=True, fault="f")
    file = tmp_path / "deep" / "rollout.npz"
    made.save(str(file))
    t = np.arange(1, count + 1)
    expected = Rollout(
        actions={"a": np.stack([t, -t], axis=1), "b": (t,)},
        rewards=0.25 * t,
        info={
            "progress": t.astype(np.float32),
            "a/b": np.repeat(t % 256, 6).reshape(count, 2, 3).astype(np.uint8),
        },
        policy_versions=t,
        sources=np.ones_like(t),
        times_s=t / 2,
        observations=np.outer(np.arange(count + 1), [1.0, 2.0]),
        worker="w",
        test=True,
        fault="f",
    )
    for rollout in (made, Rollout.load(str(file))):
        assert (len(rollout), rollout.return_) == (count, 0.25 * t.sum())
        for path, found, column in tree.walk(vars(rollout), vars(expected)):
            assert np.array_equal(found, column), path
            assert np.asarray(found).dtype == np.asarray(column).dtype, path
    with np.load(file, allow_pickle=False) as arrays:
        assert {"rewards", "info['a/b']", "actions['b'][0]"} <= set(arrays)
        assert json.loads(str(arrays["card"]))["worker"] == "w"


def test_info_that_is_no_number_of_one_form_in_all_steps_is_left_out():
    items = {
        "number": lambda t: t,
        "flag": lambda t: np.bool_(t % 2),
        "text": str,
        "nested": lambda t: {"x": t},
        "ragged": lambda t: np.zeros(t % 3),
        "ragged between two pieces": lambda t: np.zeros(2 if t <= 64 else 3),
        "objects": lambda t: np.array([object()]),
    }
    steps = steps_of(150, **items)
    steps[140][2]["at the end"] = 1.0
    del steps[149][2]["flag"]
    assert set(rollout_of(steps).info) == {"number"}


def test_keys_that_are_numbers_come_back_as_text(tmp_path):
    file, column = tmp_path / "rollout.npz", np.arange(2)
    made = drive([1, 2], [0.3, 0.5])
    dataclasses.replace(made, info={7: column}, observations={0: column}).save(file)
    rollout = Rollout.load(file)
    assert (list(rollout.info), list(rollout.observations)) == (["7"], ["0"])


@pytest.mark.parametrize("content", [b"", b"no file of numpy's", b"PK\x03\x04 no zip"])
def test_a_file_that_is_no_rollout_is_one_line(content, tmp_path):
    file = tmp_path / "rollout.npz"
    file.write_bytes(content)
    with one_line(r"rollout\.npz is no rollout that can be read"):
        Rollout.load(file)


def test_the_rollout_that_came_further_ranks_higher_and_of_those_at_the_end_the_faster_one():
    short, long = drive([1, 2], [0.3, 0.5]), drive([1, 2], [0.7, 0.6])
    slow, fast = drive([1, 9], [0.3, 1.0]), drive([1, 7, 11], [0.3, 1.0, 1.0])
    assert drive([5, 6], [0.3, 0.5]).rank == short.rank < long.rank < slow.rank < fast.rank
    assert [*map(str, (short, slow, fast))] == ["50.0% of the way", "9.00 s", "7.00 s"]
    few_steps = drive([1, 9], [0.3, 1.0], time_step_s=0.0)  # its seconds mean nothing
    assert few_steps.rank > drive([1, 2, 3], [0.3, 0.4, 1.0], time_step_s=0.0).rank
    assert str(few_steps) == "2 steps"
