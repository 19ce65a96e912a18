"""The simulated disk of power cuts: what is synced stays, and all else may be lost in any way."""

import random

import pytest
from disk import PowerDisk, read_tree

from tmrl_like.base.files import disk, link_atomically, write_atomically


@pytest.fixture
def power(tmp_path):
    root = tmp_path / "disk"
    root.mkdir()
    with PowerDisk(root) as power:
        yield power


def left(power, name="f", tries=300):
    """Return what many cuts leave of a file; None: it is missing."""
    rng = random.Random(0)
    return [power.state.after_a_cut(rng).get(name) for _ in range(tries)]


def written(power, *pieces, sync=False):
    with disk.open(power.root / "f") as file:
        for piece in pieces:
            disk.write(file, piece)
        if sync:
            disk.sync(file)
            disk.sync_folder(power.root)


def test_of_what_is_not_synced_anything_may_be_there(power):
    written(power, b"one", b"two")
    found = set(left(power, tries=3000))
    assert found >= {None, b"", b"onetwo", b"one", b"\0\0\0two", bytes(6), b"on"}


def test_a_file_replaced_in_one_step_is_the_old_one_or_the_new_one(power):
    written(power, b"old", sync=True)
    write_atomically(power.root / "f", b"new")
    assert set(left(power)) == {b"old", b"new"}
    disk.sync_folder(power.root)
    assert set(left(power)) == {b"new"}
    link_atomically(power.root / "f", power.root / "tag")
    assert set(left(power, "tag")) == {None, b"new"}


def test_after_a_cut_the_folder_is_as_the_cut_left_it_and_all_in_it_is_synced(power):
    written(power, b"one", b"two")
    power.cut(random.Random(5))
    before = read_tree(power.root)
    assert power.state.seen() == before
    assert power.state.after_a_cut(random.Random(6)) == before
