from __future__ import annotations

import contextlib
import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cli_commands import Command

from tmrl_like.cli import main
from tmrl_like.engine import revocation
from tmrl_like.engine.authority import Authority
from tmrl_like.engine.invitation import invite
from tmrl_like.transport import KeyFolder


@pytest.mark.skipif(os.name != "posix", reason="elsewhere nats-server is a child")
def test_a_node_becomes_nats_server_and_its_store_is_its_own(
    start: Callable[..., Command], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        name = f"localhost:{probe.getsockname()[1]}"
    assert main(["engine", "init", "--nodes", f"tls://{name}/"]) == 0
    assert f"tmrl-like engine start {name}\n" in capsys.readouterr().out
    node = start("engine", "start", name, "--leaf-port", "0x")
    assert node.ends() == 2
    node = start("engine", "start", name)
    node.wait_for("Server is ready")
    assert psutil.Process(node.process.pid).name() == "nats-server"
    for other in ((), ("--port", "4299")):
        second = start("engine", "start", name, *other)
        assert second.ends() == 1
        assert second.output.endswith("runs already: end that one first\n")
    node.process.terminate()
    node.ends()
    assert "Server Exiting" in node.output


@pytest.mark.skipif(os.name != "posix", reason="elsewhere nats-server is a child")
def test_a_leaf_dials_the_hub_and_status_says_what_is_there(
    start: Callable[..., Command],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tmrl_like.engine.status._LISTEN_S", 0.1)
    ports = []
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    name = f"localhost:{ports[0]}"
    main(["engine", "init", "--nodes", name])
    node = start("engine", "start", name)
    node.wait_for("Server is ready")
    leaf = start("engine", "leaf", "--hub", name, "--port", str(ports[1]))
    leaf.wait_for("JetStream using domains")
    capsys.readouterr()
    assert main(["engine", "status"]) == 0
    assert capsys.readouterr().out == f"{'tls://' + name:<32} answers\n\nall is well\n"
    node.process.terminate()
    node.ends()
    monkeypatch.setattr("tmrl_like.engine.status._REACH_S", 0.4)
    monkeypatch.setattr("tmrl_like.engine.connection._COMPLAIN_AFTER_S", 0.1)
    assert main(["engine", "status", "--engine", name]) == 1
    assert f"wrong: tls://{name}: does not answer" in capsys.readouterr().out
    assert "no node of the engine answers" not in caplog.text  # the screen has it


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["start", "localhost"], "tmrl-like engine init"),
        (["leaf"], "tmrl-like keys invite NAME --role site"),
        (["status"], "tmrl-like keys invite NAME --role trainer"),
        (["status", "--engine", "a b"], "engine is 'a b'; expected tls://host[:port]"),
        (["init", "--nodes", "a,b"], "--nodes is 'a,b'; expected one node, or three or five different ones"),
        (["init", "--nodes", "a,b,a:4222"], "--nodes is 'a,b,a:4222'; expected one node, or three"),
        (["init", "--nodes", "a b"], "engine is 'a b'; expected tls://host[:port]"),
        (["init"], "the following arguments are required: --nodes"),
    ],
)
def test_a_users_mistake_is_one_line(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert problem in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("taken", ["--port", "--leaf-port"])
def test_a_port_that_is_taken_is_one_line(taken: str, capfd: pytest.CaptureFixture[str]) -> None:
    main(["engine", "init", "--nodes", "localhost"])
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "execv", lambda *_: pytest.fail("it starts"))
            assert main(["engine", "start", "localhost", "--port", "4299", taken, str(port)]) == 1
    assert capfd.readouterr().err.startswith(f"tmrl-like: error: cannot listen on 127.0.0.1:{port}: ")


def test_a_folder_that_cannot_be_written_is_one_line(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["engine", "init", "--nodes", "localhost"])
    (own_home / ".tmrl_like" / "engine").touch()
    assert main(["engine", "start", "localhost"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("tmrl-like: error: cannot write ")
    assert err.count("\n") == 1


def test_a_node_cannot_be_revoked(capsys: pytest.CaptureFixture[str]) -> None:
    main(["engine", "init", "--nodes", "localhost"])
    assert main(["keys", "revoke", "localhost"]) == 2
    assert "localhost is one of the engine's nodes, which cannot be revoked" in capsys.readouterr().err


def test_an_engine_is_made_once_and_says_what_comes_next(capsys: pytest.CaptureFixture[str], own_home: Path) -> None:
    assert main(["engine", "init", "--nodes", "a.example,b.example,c.example:4300"]) == 0
    out = capsys.readouterr().out
    for node in ("a.example", "b.example", "c.example:4300"):
        assert f"tmrl-like engine start {node}\n" in out
    assert "tmrl-like keys invite NODE --role node" in out
    secret = (own_home / ".tmrl_like" / "keys" / "engine.json").read_bytes()
    assert main(["engine", "init", "--nodes", "a.example"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert (own_home / ".tmrl_like" / "keys" / "engine.json").read_bytes() == secret
    assert main(["engine", "start", "d.example"]) == 2
    assert "has no node 'd.example'; its nodes are a.example, b.example, c.example:4300" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a terminal cuts no line")
def test_a_terminal_takes_a_line_longer_than_it_edits_and_shows_nothing_of_it(tmp_path: Path) -> None:
    import termios

    keys = KeyFolder(tmp_path / "here")
    Authority.create(keys, ("localhost",))
    line = invite(keys, "arena", "site")
    assert len(line) > 4095
    outside, inside = os.openpty()
    before = termios.tcgetattr(inside)
    command = [sys.executable, "-m", "tmrl_like", "keys", "join", "-", "--keys-dir", str(tmp_path / "there")]
    process = subprocess.Popen(command, stdin=inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "paste the line" in process.stderr.readline()
    with open(outside, "r+b", buffering=0) as terminal:
        while termios.tcgetattr(inside)[3] & termios.ICANON:
            time.sleep(0.01)
        terminal.write(line.encode() + b"\n")
        out, err = process.communicate(timeout=60)
        assert (out, err, process.returncode) == ("this machine is the engine's site arena\n", "", 0)
        assert termios.tcgetattr(inside) == before
        os.set_blocking(outside, False)
        assert terminal.read(100) is None  # no echo
    os.close(inside)


def test_sites_trainers_and_nodes_are_invited_listed_joined_and_revoked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = functools.partial(revocation.push_revocations, within_s=0.1)
    monkeypatch.setattr(revocation, "push_revocations", impatient)
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    assert main(["keys", "invite", "arena", "--role", "site", "--keys-dir", here]) == 2
    assert "holds no engine: run this where it was made" in capsys.readouterr().err
    assert main(["engine", "init", "--nodes", "localhost:1", "--keys-dir", here]) == 0
    for name, role in (("arena", "site"), ("gpu", "trainer"), ("localhost:1", "node")):
        capsys.readouterr()
        assert main(["keys", "invite", name, "--role", role, "--keys-dir", here]) == 0
        line = capsys.readouterr().out.strip()
        assert main(["keys", "join", line, "--keys-dir", there]) == 0
        assert capsys.readouterr().out == f"this machine is the engine's {role} {name}\n"
    assert main(["keys", "invite", "robot", "--keys-dir", there]) == 0
    capsys.readouterr()
    assert main(["keys", "list", "--keys-dir", here]) == 0
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ["arena", "the engine's site"],
        ["gpu", "trainer, the engine's trainer"],
        ["local", "worker, trainer"],
        ["localhost:1", "the engine's node"],
    ]
    for _ in range(2):  # until a node has heard of it
        assert main(["keys", "revoke", "gpu", "--keys-dir", here]) == 1
        err = capsys.readouterr().err
        assert "gpu is revoked, but no node of the engine answers (localhost:1): say it again when one runs" in err
    assert main(["keys", "list", "--keys-dir", here]) == 0
    assert "gpu" not in capsys.readouterr().out
