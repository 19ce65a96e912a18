"""Saving published policies to disk."""

import errno
from unittest.mock import MagicMock

import pytest
from house import linear_actor
from kit.executors import AtOnce, Beside

from tmrl_like.base.functional import partial
from tmrl_like.policies.policy_file import describe, read_card
from tmrl_like.policies.policy_store import PolicyStore
from tmrl_like.policies.weights import copied
from tmrl_like.trainer.options import TrainerOptions
from tmrl_like.trainer.saver import Publication, Saver


def publication(version, bias=0.0):
    return Publication(version, 1000.0 + version, copied(linear_actor(bias=bias).state_dict()))


class Kept:
    """A saver whose training steps, clock and thread are the test's."""

    def __init__(self, folder, monkeypatch, beside=None, waiting_bytes=32 << 20, **options):
        beside = beside or AtOnce()
        self.steps, self.now = 0, 100.0
        monkeypatch.setattr("tmrl_like.trainer.saver.time.monotonic", lambda: self.now)
        monkeypatch.setattr("tmrl_like.trainer.saver.thread_beside", lambda name: beside)
        self.store = PolicyStore(folder / "drone" / "policies")
        card = describe(linear_actor(), run="drone")
        options = TrainerOptions(**options)
        self.saver = Saver(
            folder / "newest", self.store, card, options, lambda: self.steps, waiting_bytes
        )

    def save(self, version, bias=0.0, after_s=0.0, steps=0):
        self.now += after_s
        self.steps += steps
        self.saver.save(publication(version, bias))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    return partial(Kept, tmp_path, monkeypatch)


def test_each_version_that_is_finite_is_kept_and_the_newest_under_its_own_name(kept, tmp_path):
    one = kept(keep_policies=2)
    for version in (1, 2, 3):
        one.save(version, bias=float(version), steps=10)
    one.save(4, bias=float("nan"))  # publishing reports this
    assert one.store.versions() == [2, 3]
    assert one.store.path(3).read_bytes() == (tmp_path / "newest").read_bytes()
    card = read_card(tmp_path / "newest")
    found = card.run, card.version, card.published_at_s, card.training_steps
    assert found == ("drone", 3, 1003.0, 30)


@pytest.mark.parametrize(
    ("limits", "tags"),
    [
        ({}, []),
        ({"tag_every_steps": 20}, ["step-20", "step-40"]),
        ({"tag_every_s": 3.0}, ["step-30"]),
        ({"tag_every_s": 1.0, "tag_every_steps": 40}, ["step-40"]),
    ],
)
def test_a_version_gets_a_tag_when_both_limits_have_passed(limits, tags, kept):
    one = kept(keep_policies=1, **limits)
    one.save(1)
    for version in (2, 3, 4, 5):
        one.save(version, after_s=1.0, steps=10)
    assert one.store.tags() == tags
    assert [read_card(one.store.path(tag)).training_steps for tag in tags] == [
        int(tag[5:]) for tag in tags
    ]


@pytest.mark.fault(
    "disk", "the disk is slower than policies come", "the oldest that wait are left out"
)
def test_where_the_disk_is_slower_than_training_the_oldest_that_wait_are_left_out(kept):
    one = kept(Beside(), waiting_bytes=3 * len(publication(1).weights.content.data))
    for version in range(1, 8):
        one.save(version)
    one.saver.close()
    assert one.store.versions() == [1, 5, 6, 7]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device"),
        (MemoryError(), "no memory is left"),
        (RuntimeError("the GPU is gone"), "the GPU is gone"),
    ],
)
def test_a_policy_that_cannot_be_written_is_logged_once(error, reason, kept, monkeypatch, caplog):
    one = kept()
    monkeypatch.setattr(one.store, "add", MagicMock(side_effect=error))
    one.save(1)
    one.save(2)
    (said,) = caplog.messages
    assert said.endswith(f"policies: {reason}; training goes on")
