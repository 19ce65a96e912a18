"""A changed byte anywhere in a stored file is detected, and nothing wrong is loaded."""

import logging
import re

import pytest
from house import linear_actor
from kit.policies import written
from kit.refusals import one_line
from kit.trainings import training

from tmrl_like.base.checked import checked_json, read_checked
from tmrl_like.errors import CredentialsError, PolicyError
from tmrl_like.policies.policy_store import PolicyStore
from tmrl_like.trainer.snapshot import load_checkpoint, take_snapshot
from tmrl_like.transport.credentials import Authorized, AuthorizedKeys, KeyFolder

CHANGES = {
    "flipped": lambda data, at: data[:at] + bytes((data[at] ^ 1 << at % 8,)) + data[at + 1 :],
    "zero": lambda data, at: data[:at] + b"\0" + data[at + 1 :],
    "zeros": lambda data, at: (
        data[: at // 64 * 64] + bytes(len(data[at // 64 * 64 :][:64])) + data[at // 64 * 64 + 64 :]
    ),
    "cut": lambda data, at: data[:at],
}


def damaged(path, places=None):
    """Damage a file at each place in each way in turn; restore it at the end."""
    whole = path.read_bytes()
    for at in range(len(whole)) if places is None else places:
        for way, change in CHANGES.items():
            data = change(whole, at)
            if data != whole:
                path.write_bytes(data)
                yield f"byte {at} {way}"
    path.write_bytes(whole)


def assert_one_line(caplog, *words):
    """Assert that one line was logged, and that it has these words."""
    (record,) = caplog.records
    said = record.getMessage()
    assert "\n" not in said
    assert all(str(word) in said for word in words), said


@pytest.mark.parametrize("text", [b"[" * 100_000, b"[]", b"{}", b"\xff", b""])
def test_a_small_file_of_something_else_is_a_value_error(text):
    for content in (text, text + checked_json(Authorized((), "x"))[-19:]):
        with pytest.raises(ValueError, match=r"."):
            read_checked(content, Authorized)


@pytest.mark.fault(
    "disk", "the newest policy in the store is damaged", "the one before is taken, one line says so"
)
def test_the_newest_policy_that_is_whole_is_taken(tmp_path, caplog):
    store = PolicyStore(tmp_path)
    for version in (1, 2, 3):
        written(store.path(version), linear_actor(weight=float(version)), version=version)
    for version in (3, 2):
        data = store.path(version).read_bytes()
        store.path(version).write_bytes(data[:-1] + bytes((data[-1] ^ 1,)))
    with caplog.at_level(logging.WARNING):
        assert store.find("newest") == store.path(1)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    store.path(1).write_bytes(b"")
    with pytest.raises(PolicyError, match=r"1\.safetensors"):
        store.find("newest")


def steps_in(folder):
    one = training()
    head = load_checkpoint(one, folder)
    assert one.total_updates == one.agent.steps == one.kept.version == head.training_steps
    return one.total_updates


@pytest.mark.fault(
    "disk", "any byte of a checkpoint is damaged", "the checkpoint before is taken, in one line"
)
def test_a_damaged_checkpoint_costs_itself_and_not_the_one_before(tmp_path, caplog):
    for steps in (1, 2):
        one = training()
        one.total_updates = one.agent.steps = one.kept.version = steps
        take_snapshot(one, "run").write(tmp_path)
    path = tmp_path / "checkpoint-2"
    head, size = path.read_bytes().index(b"\n"), path.stat().st_size
    for where in damaged(path, [*range(0, head + 2, 13), *range(head + 2, size, size // 20)]):
        caplog.clear()
        assert steps_in(tmp_path) == 1, where
        assert_one_line(caplog, "checkpoint 2", "is damaged", "checkpoint 1")
    assert steps_in(tmp_path) == 2


def names(keys):
    return {identity.name for identity in AuthorizedKeys(keys).identities.values()}


@pytest.mark.fault("people", "somebody damages one peer's key file", "the others get in")
@pytest.mark.fault(
    "disk", "any byte of a key file is damaged", "one line names it; that key alone is refused"
)
def test_a_damaged_key_is_one_line_that_says_what_to_do(tmp_path, caplog):
    keys = KeyFolder(tmp_path / "keys")
    server = keys.server_keys()
    keys.invite("robot", ("worker",))
    for name, read in (("server.json", keys.server_keys), ("peer.json", keys.peer_keys)):
        path = keys.path / name
        for _ in damaged(path, range(0, path.stat().st_size, 13)):
            with one_line(f"{re.escape(str(path))}.*restore it", CredentialsError):
                read()
    assert keys.server_keys() == server
    path = keys.path / "authorized" / "robot.json"
    assert names(keys) == {"local", "robot"}
    for where in damaged(path):
        caplog.clear()
        assert names(keys) == {"local"}, where
        assert_one_line(caplog, path, "this key is refused")
