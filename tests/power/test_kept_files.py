"""Keys, policies and checkpoints, with their work ended at each disk operation: the next process
finds what was promised.

Samples alone are tested in tests/delivery/test_sample_store.py, and in the histories of
tests/simulation.
"""

from contextlib import closing

import msgspec
import pytest
from disk import age, end_at_each_operation
from house import linear_actor
from kit.executors import AtOnce
from kit.trainings import Run

from tmrl_like.policies.policy_file import describe, read_policy
from tmrl_like.policies.policy_store import PolicyStore
from tmrl_like.transport.credentials import AuthorizedKeys, KeyFolder

LATE = 100
SAMPLES = 5  # of a packet


class Keys:
    """Makes two keys, and revokes one of them."""

    def work(self, root, promise):
        folder = KeyFolder(root / "keys")
        folder.server_keys()
        folder.invite("a")
        promise({"a"})
        folder.invite("b")
        promise({"a", "b"})
        promise({"b"})  # from here on the other key may be gone …
        folder.revoke("a")
        promise({"b", "not a"})  # … and from here on it must be

    def check(self, root, promised):
        folder = KeyFolder(root / "keys")
        assert folder.peer_keys().server_curve_public == folder.server_keys().curve_public
        names = {identity.name for identity in AuthorizedKeys(folder).identities.values()}
        kept = promised[-1] if promised else set()
        assert names >= {"local"} | kept - {"not a"}
        assert "not a" not in kept or "a" not in names
        folder.invite("late")


class Policies:
    """Adds four policy versions, of which two are kept, and one is tagged."""

    def _add(self, store, version):
        actor = linear_actor(bias=float(version))
        store.add(actor.weights(), msgspec.structs.replace(describe(actor), version=version))
        store.collect(at_most=2)

    def work(self, root, promise):
        store = PolicyStore(root / "policies")
        for version in range(1, 5):
            self._add(store, version)
            if version == 2:
                store.tag("2", "kept")
                promise("kept")

    def check(self, root, promised):
        store = PolicyStore(root / "policies")
        for name in [*map(str, store.versions()), *store.tags()]:
            card, weights = read_policy(store.path(name))
            assert (
                card.version
                == weights.arrays()["layer.bias"][0]
                == (2 if name == "kept" else int(name))
            )
        assert set(promised) <= set(store.tags())
        self._add(store, LATE)


class CheckpointsOfARun:
    """Takes three packets of samples, and writes a checkpoint after each."""

    def work(self, root, promise, packets=3):
        run = Run(root / "training", sync_every_s=0.25, beside=lambda name: AtOnce())
        with closing(run.checkpoints):
            assert run.numbers == [*range(run.counts[0])]
            promise(run.counts)
            first = run.counts[0] // SAMPLES + 1
            for number in range(first, first + packets):
                assert run.take(number, n=SAMPLES) == {"w": number}
                promise(run.counts)
                run.training.total_updates += 1
                run.save()
                promise(run.counts)

    def check(self, root, promised):
        found = []
        self.work(root, found.append, packets=1)
        for samples, updates in promised:
            assert found[0][0] >= samples
            assert found[0][1] >= updates


@pytest.mark.fault(
    "processes",
    "the trainer is killed at each write, rename and sync of checkpoint, policies and keys in turn",
    "the next start has all that was promised",
)
@pytest.mark.fault(
    "disk",
    "the power of the trainer's machine is cut, at any write",
    "nothing that was acknowledged as stored is lost, nothing damaged is loaded",
)
@pytest.mark.parametrize("is_cut", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("kind", [Keys, Policies, CheckpointsOfARun])
def test_ended_at_any_operation_all_that_was_promised_is_there_and_no_draft_stays(
    tmp_path, kind, is_cut
):
    kept = kind()

    def check(root, promised):
        age(root)
        kept.check(root, promised)
        assert [path for path in root.rglob(".*") if path.is_file()] == []

    assert end_at_each_operation(tmp_path, kept.work, check, is_cut) > 10
