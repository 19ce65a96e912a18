"""Keys that sign, and what other machines get of them."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import pytest

from tmrl_like.engine.authority import Authority, engine_node, engine_user, store_node, store_user
from tmrl_like.engine.broker import write_config
from tmrl_like.errors import CredentialsError
from tmrl_like.transport import KeyFolder

NODES = ("a.example", "b.example:4300")


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "keys")


@pytest.fixture
def authority(keys: KeyFolder) -> Authority:
    return Authority.create(keys, NODES)


def claims(jwt: str) -> dict:
    body = jwt.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))


def test_the_authoritys_machine_needs_no_invitation(authority: Authority, keys: KeyFolder) -> None:
    user = engine_user(keys, "site")
    assert (user.name, user.role, user.nodes) == ("local", "site", NODES)
    assert engine_node(keys, "a.example").nodes == NODES


def test_another_machine_is_who_it_was_invited_as(authority: Authority, tmp_path: Path) -> None:
    other = KeyFolder(tmp_path / "other")
    with pytest.raises(CredentialsError, match="keys invite NAME --role site"):
        engine_user(other, "site")
    user = authority.invite_user("arena", "site")
    store_user(other, user)
    assert engine_user(other, "site") == user
    with pytest.raises(CredentialsError, match="holds no trainer of an engine"):
        engine_user(other, "trainer")


def test_a_node_is_who_it_was_invited_as(authority: Authority, tmp_path: Path) -> None:
    other = KeyFolder(tmp_path / "other")
    with pytest.raises(CredentialsError, match=r"keys invite b\.example:4300 --role node"):
        engine_node(other, "b.example:4300")
    store_node(other, authority.node("b.example:4300"))
    assert engine_node(other, "b.example:4300").name == "b.example:4300"
    with pytest.raises(CredentialsError, match=r"holds the node b\.example:4300, not a\.example"):
        engine_node(other, "a.example")
    with pytest.raises(CredentialsError, match="has no node 'c'; its nodes are a"):
        authority.node("c")


def test_secrets_are_their_owners_only(authority: Authority, keys: KeyFolder) -> None:
    store_user(keys, authority.invite_user("arena", "site"))
    store_node(keys, authority.node("a.example"))
    for name in ("engine.json", "engine_site.json", "engine_node.json"):
        assert os.name != "posix" or (keys.path / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "{}", '{"nodes": 3}'])
def test_a_damaged_file_is_one_line(authority: Authority, keys: KeyFolder, content: str) -> None:
    (keys.path / "engine.json").write_text(content)
    with pytest.raises(CredentialsError, match=r"engine\.json is damaged"):
        engine_user(keys, "site")


def test_a_seed_that_is_none_is_one_line(authority: Authority, keys: KeyFolder) -> None:
    file = keys.path / "engine.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "account_seed": "SX"}))
    with pytest.raises(CredentialsError, match=r"engine\.json is damaged"):
        engine_user(keys, "site")


def test_an_authority_is_made_once(authority: Authority, keys: KeyFolder) -> None:
    before = (keys.path / "engine.json").read_bytes()
    with pytest.raises(CredentialsError, match="is there already"):
        Authority.create(keys, NODES)
    assert (keys.path / "engine.json").read_bytes() == before


def test_a_name_is_taken_until_it_is_revoked(authority: Authority) -> None:
    first = authority.invite_user("arena", "site")
    for name in ("arena", "local"):
        with pytest.raises(CredentialsError, match="already"):
            authority.invite_user(name, "site")
    with pytest.raises(CredentialsError, match=r"'B\.example' is a node of this engine"):
        authority.invite_user("B.example", "site")
    with pytest.raises(CredentialsError, match="is not a name"):
        authority.invite_user("../arena", "site")
    authority.revoke("arena")
    assert authority.users() == {}
    assert authority.names() == {"arena"}  # so that who has not heard of it can be told again
    assert claims(authority.invite_user("arena", "site").jwt)["sub"] != claims(first.jwt)["sub"]


def test_each_revocation_makes_a_newer_jwt_of_the_account_and_nothing_else_does(authority: Authority) -> None:
    jwts = [authority.account_jwt()]
    for name in ("a", "b", "c"):
        authority.invite_user(name, "site")
        assert authority.account_jwt() == jwts[-1]
        authority.revoke(name)
        jwts.append(authority.account_jwt())
    times = [claims(jwt)["iat"] for jwt in jwts]
    assert times == sorted(set(times))
    assert len(claims(jwts[-1])["nats"]["revocations"]) == 3


@pytest.mark.fault("clocks", "the clock is set back after an engine's key was made", "it can be revoked all the same")
def test_who_was_invited_by_a_clock_that_was_ahead_is_revoked(authority: Authority, monkeypatch) -> None:
    real = time.time
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: real() + 3600.0)
        user = claims(authority.invite_user("arena", "site").jwt)
    authority.revoke("arena")
    assert claims(authority.account_jwt())["nats"]["revocations"][user["sub"]] >= user["iat"]


def test_no_secret_of_the_authority_is_in_a_nodes_files(authority: Authority, keys: KeyFolder, tmp_path: Path) -> None:
    store_node(KeyFolder(tmp_path / "node"), authority.node("a.example"))
    write_config(tmp_path / "node", authority.node("a.example"))
    secrets = json.loads((keys.path / "engine.json").read_text())
    hidden = [value for name, value in secrets.items() if name.endswith(("_seed", "_key"))]
    assert len(hidden) == 4
    for file in (tmp_path / "node").iterdir():
        content = file.read_text()
        for secret in hidden:
            assert secret not in content
            assert json.dumps(secret) not in content


@pytest.mark.fault("disk", "a file of an engine's keys is damaged", "one line names it; nobody revoked comes back")
def test_a_damaged_file_of_an_engines_keys_is_refused(authority: Authority, keys: KeyFolder, tmp_path: Path) -> None:
    for name in ("a", "b"):
        authority.invite_user(name, "site")
    authority.revoke("a")
    joined = KeyFolder(tmp_path / "joined")
    store_user(joined, authority.invite_user("c", "site"))
    store_node(joined, authority.node("a.example"))
    files = {
        keys.path / "engine.json": lambda: Authority(keys),
        keys.path / "engine_revoked.json": authority.account_jwt,
        keys.path / "engine_users" / "b.json": authority.users,
        joined.path / "engine_site.json": lambda: engine_user(joined, "site"),
        joined.path / "engine_node.json": lambda: engine_node(joined, "a.example"),
    }
    for path, read in files.items():
        whole = path.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 50)):
            path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
            with pytest.raises(CredentialsError, match="is damaged"):
                read()
        path.write_bytes(whole)
        read()
