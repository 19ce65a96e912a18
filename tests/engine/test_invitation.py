"""What an invitation's line makes of another machine."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest

from tmrl_like.engine.authority import Authority, engine_node, engine_user
from tmrl_like.engine.invitation import LINE_PREFIX, invite, join
from tmrl_like.errors import CredentialsError
from tmrl_like.transport import KeyFolder


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    keys = KeyFolder(tmp_path / "keys")
    Authority.create(keys, ("a.example", "b.example"))
    return keys


@pytest.fixture
def other(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "other")


def test_a_site_runs_the_same_server_as_the_others_and_invites_workers_of_its_own(
    keys: KeyFolder, other: KeyFolder, tmp_path: Path
) -> None:
    assert join(other, invite(keys, "arena", "site")) == "site arena"
    assert engine_user(other, "site").name == "arena"
    assert other.server_keys() == keys.server_keys()
    assert other.peer_keys().roles == ("worker", "trainer")
    robot = KeyFolder(tmp_path / "robot")
    robot.join(other.invite("robot"))
    assert robot.peer_keys().server_curve_public == keys.peer_keys().server_curve_public
    assert not (keys.path / "authorized" / "robot.json").exists()
    with pytest.raises(CredentialsError, match="holds no engine: run this where it was made"):
        invite(other, "lab", "site")
    assert join(other, invite(keys, "arena2", "site")) == "site arena2"  # the same fleet: another line replaces it


def test_a_trainer_is_a_peer_of_the_server_as_without_an_engine(keys: KeyFolder, other: KeyFolder) -> None:
    assert join(other, invite(keys, "gpu", "trainer")) == "trainer gpu"
    assert engine_user(other, "trainer").name == "gpu"
    assert (other.peer_keys().name, other.peer_keys().roles) == ("gpu", ("trainer",))
    assert (keys.path / "authorized" / "gpu.json").exists()


def test_a_node_gets_what_it_needs_and_is_no_peer(keys: KeyFolder, other: KeyFolder) -> None:
    assert join(other, invite(keys, "tls://b.example:4222", "node")) == "node b.example"
    assert engine_node(other, "b.example").nodes == ("a.example", "b.example")
    assert {file.name for file in other.path.iterdir()} == {"engine_node.json"}


def test_one_machine_may_be_a_node_a_site_and_a_trainer(keys: KeyFolder, other: KeyFolder) -> None:
    for name, role in (("b.example", "node"), ("arena", "site"), ("gpu", "trainer")):
        join(other, invite(keys, name, role))
    assert (engine_user(other, "site").name, engine_user(other, "trainer").name) == ("arena", "gpu")
    assert other.peer_keys().name == "local"


def test_a_name_that_is_taken_leaves_nothing_behind(keys: KeyFolder) -> None:
    invite(keys, "arena", "site")
    with pytest.raises(CredentialsError, match="there is a key named 'arena' already"):
        invite(keys, "arena", "trainer")
    assert not (keys.path / "authorized" / "arena.json").exists()
    keys.invite("robot")
    with pytest.raises(CredentialsError, match="there is a key named 'robot' already"):
        invite(keys, "robot", "trainer")
    assert set(Authority(keys).users()) == {"arena"}


def test_a_machine_with_keys_of_another_server_does_not_join(keys: KeyFolder, other: KeyFolder, tmp_path: Path) -> None:
    other.server_keys()
    with pytest.raises(CredentialsError, match="holds another server's keys"):
        join(other, invite(keys, "arena", "site"))
    with pytest.raises(CredentialsError, match="holds a server's keys"):
        join(other, invite(keys, "gpu", "trainer"))
    worker = KeyFolder(tmp_path / "worker")
    worker.join(keys.invite("robot"))
    with pytest.raises(CredentialsError, match="holds a key that joins another machine's server"):
        join(worker, invite(keys, "lab", "site"))
    assert not list(worker.path.glob("engine*"))


@pytest.mark.parametrize(
    "line", ["", "tmrl-like-key-1.abc", LINE_PREFIX, LINE_PREFIX + "abc", LINE_PREFIX + "oWV1c2Vy", "cut"]
)
def test_a_line_that_is_none_is_refused(keys: KeyFolder, other: KeyFolder, line: str) -> None:
    with pytest.raises(CredentialsError, match="keys invite"):
        join(other, invite(keys, "arena", "site")[:-40] if line == "cut" else line)
    assert not other.path.exists()


def test_no_secret_of_the_authority_is_in_a_line(keys: KeyFolder) -> None:
    secrets = msgspec.json.decode((keys.path / "engine.json").read_bytes())
    hidden = [value.encode() for name, value in secrets.items() if name.endswith(("_seed", "_key"))]
    assert len(hidden) == 4
    for name, role in (("arena", "site"), ("gpu", "trainer"), ("b.example", "node")):
        text = invite(keys, name, role).removeprefix(LINE_PREFIX)
        content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        assert b"CERTIFICATE" in content
        assert not any(secret in content for secret in hidden)
