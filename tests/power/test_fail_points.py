"""The process is killed at each write, rename and sync of what a trainer's machine keeps: the next one goes on."""

import os
import random
import signal

import msgspec
import pytest
from disk import age, write_tree
from kept_run import Found, Promises, check, drive

PACKETS = 60


def points(driven):
    """(number of an operation, what a killed process leaves, what was promised): within each write, and after each."""
    before = Promises()
    for number, state, promises in driven.states():
        operation = driven.power.operations[number - 1] if number else ("start",)
        if operation[0] == "write":
            _, file, at, data = operation
            pending = state.files[file].pending
            pending[-1] = at, data[: len(data) // 2]
            yield number, state.seen(), before
            pending[-1] = at, data
        yield number, state.seen(), before
        before = promises


def failing(tmp_path, driven, is_chosen):
    found, count = Found(), 0
    for number, tree, promises in points(driven):
        if is_chosen(number):
            count += 1
            left = tmp_path / f"killed {count}"
            write_tree(tree, left)
            age(left)
            before = len(found.wrong)
            check(left, promises, found)
            found.wrong[before:] = [f"operation {number}: {line}" for line in found.wrong[before:]]
    assert count > 20
    return found


@pytest.fixture
def driven(tmp_path):
    (tmp_path / "run").mkdir()
    return drive(tmp_path / "run", PACKETS, seed=3)


def test_a_kill_at_an_operation_of_each_kind_costs_nothing_that_was_promised(tmp_path, driven):
    first = {}
    folders = {}  # of open files, by number
    for number, (kind, *what) in enumerate(driven.power.operations, start=1):
        if kind == "open":
            folders[what[0]] = what[1]
        path = folders[what[0]] if isinstance(what[0], int) else what[-1]
        first.setdefault((kind, path.split("/")[:2][-1][:8]), number)
    found = failing(tmp_path, driven, {*first.values()}.__contains__)
    assert (found.lost, found.damaged, found.wrong) == (0, 0, [])


@pytest.mark.chaos
@pytest.mark.fault(
    "processes",
    "the trainer is killed at each write, rename and sync of log, checkpoint, policies and keys in turn",
    "the next start has all that was promised",
)
def test_a_kill_at_any_operation_costs_nothing_that_was_promised(tmp_path, driven, figure):
    found = failing(tmp_path, driven, lambda number: True)
    assert (found.lost, found.damaged, found.wrong) == (0, 0, [])
    figure(f"after {len(driven.power.operations)} operations, and within each write: 0 lost, 0 damaged loaded")


@pytest.mark.fault(
    "processes",
    "the trainer is killed at each write, rename and sync of log, checkpoint, policies and keys in turn",
    "the next start has all that was promised",
)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, so that many can be killed in seconds")
@pytest.mark.parametrize("kills", [3, pytest.param(60, id="full", marks=pytest.mark.chaos)])
def test_a_process_that_is_really_killed_costs_nothing_that_was_promised(tmp_path, driven, figure, kills):
    found = Found()
    for at in random.Random(kills).sample(range(len(driven.power.operations)), kills):
        root = tmp_path / f"killed at {at}"
        root.mkdir()
        read, written = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            try:
                drive(
                    root,
                    PACKETS,
                    seed=3,
                    before=lambda number, at=at: number == at and os.kill(os.getpid(), signal.SIGKILL),
                    tell=lambda promises, to=written: os.write(to, msgspec.json.encode(promises) + b"\n"),
                )
            finally:
                os._exit(1)
        os.close(written)
        with os.fdopen(read, "rb") as said:
            lines = said.read().splitlines()
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        age(root)
        check(root, msgspec.json.decode(lines[-1], type=Promises) if lines else Promises(), found)
    assert (found.lost, found.damaged, found.wrong) == (0, 0, [])
    figure(f"{kills} times by SIGKILL: 0 lost, 0 damaged loaded")
