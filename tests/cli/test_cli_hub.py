"""`policies push|pull` and `log --push|--pull`, against a stand-in that speaks what the hub's library calls."""

from __future__ import annotations

import base64
import errno
import http.server
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tiny import TinyActor, TinyEnv

from tmrl_like import load_policy
from tmrl_like.config.experiment import Settings
from tmrl_like.policies.policy_file import describe
from tmrl_like.policies.store import PolicyStore
from tmrl_like.replay.data_sets import read_data_set, write_data_set
from tmrl_like.types import Buffer, Info, Sample

CommandLine = Callable[..., int]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """Repositories in memory: `models/me/drone` -> files by name."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.visibility: dict[str, str] = {}
        self.gets: list[str] = []
        self.gone: set[str] = set()  # files that are listed, and not there

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may hang up whenever it likes."""


class Answers(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] != "Bearer hf_ours":
            return self._answer(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            place = f"{asked.get('type', 'model')}s/{name}"
            self.server.repositories.setdefault(place, {})
            self.server.visibility.setdefault(place, asked["visibility"])
            prefix = "" if place.startswith("models") else "datasets/"
            return self._answer(200, {"url": f"{os.environ['HF_ENDPOINT']}/{prefix}{name}"})
        _, _, kind, user, name, what, revision = self.path.split("/")
        assert revision == "main"
        if what == "preupload":
            asked_for = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            return self._answer(200, {"files": [file | {"shouldIgnore": False} for file in asked_for]})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.server.repositories[f"{kind}/{user}/{name}"][line["value"]["path"]] = content
        prefix = "" if kind == "models" else "datasets/"
        url = f"{os.environ['HF_ENDPOINT']}/{prefix}{user}/{name}/commit/{COMMIT}"
        return self._answer(200, {"commitOid": COMMIT, "commitUrl": url})

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.command == "GET":
            self.server.gets.append(path)
        if path.startswith("/api/"):
            _, _, kind, user, name, _, _ = path.split("/")
            files = self.server.repositories.get(f"{kind}/{user}/{name}")
            if files is None:
                return self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            found = [{"type": "file", "path": file, "size": len(data), "oid": "0"} for file, data in files.items()]
            return self._answer(200, found)
        place, _, file = path.partition("/resolve/main/")
        kind = "" if place.startswith("/datasets/") else "/models"
        data = self.server.repositories.get(f"{kind}{place}".removeprefix("/"), {}).get(file)
        if data is None or file in self.server.gone:
            return self._answer(404, {}, {"X-Error-Code": "EntryNotFound"})
        return self._answer(200, data, {"ETag": f'"{hash(data) & 0xFFFFFFFF:x}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def _answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Silent."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """The library reads where the hub is once, when it is imported: here, for this process."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hub")))
        patch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        constants = pytest.importorskip("huggingface_hub.constants")
        assert os.environ["HF_ENDPOINT"] == constants.ENDPOINT
        yield hub
    hub.shutdown()
    thread.join()
    hub.server_close()


@pytest.fixture
def hub(served: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    served.repositories.clear()
    served.visibility.clear()
    served.gone.clear()
    monkeypatch.setenv("HF_TOKEN", "hf_ours")
    return served


@pytest.fixture
def store() -> PolicyStore:
    kept = PolicyStore(Settings(run_name="tiny").paths.policies)
    actor = TinyActor(TinyEnv.observation_space, TinyEnv.action_space)
    kept.add([actor.weights()], msgspec.structs.replace(describe(actor, run="tiny"), version=7))
    return kept


def test_a_policy_goes_to_the_hub_and_comes_back(
    hub: Hub, store: PolicyStore, command_line: CommandLine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line("policies", "push", "tiny@7", "me/arm", "--name", "best") == 0
    assert hub.repositories == {"models/me/arm": {"best.safetensors": store.path(7).read_bytes()}}
    assert hub.visibility == {"models/me/arm": "private"}
    assert command_line("policies", "push", "tiny@7", "me/everybodys", "--public") == 0
    assert hub.visibility["models/me/everybodys"] == "public"
    file = tmp_path / "pulled.safetensors"
    assert command_line("policies", "pull", "me/arm@main", str(file), "--name", "best") == 0
    assert "version 7 of tiny" in capsys.readouterr().out
    assert load_policy(file, allow=("tiny",)).version == 7


def test_what_is_pulled_is_checked_and_not_written_unless_it_is_a_policy(
    hub: Hub, command_line: CommandLine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actor = TinyActor(TinyEnv.observation_space, TinyEnv.action_space)
    actor.pedal.data.fill_(torch.nan)
    for k, (content, line) in enumerate(
        [(b"garbage", "not a safetensors file"), (actor.weights(), "pedal holds values that are not finite")]
    ):
        hub.repositories[f"models/you/arm{k}"] = {"policy.safetensors": content}
        assert command_line("policies", "pull", f"you/arm{k}", str(tmp_path / "file")) == 2
        error = capsys.readouterr().err
        assert f"you/arm{k}: " in error
        assert line in error
    assert not (tmp_path / "file").exists()


def test_a_log_goes_to_the_hub_and_comes_back(
    hub: Hub, command_line: CommandLine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [Sample(np.float32(k), np.float32([k]), 1.0, k == 2, False, Info(is_reset=k == 0)) for k in range(3)]
    write_data_set(tmp_path / "flights", [Buffer(samples, "w")])
    (segment,) = (tmp_path / "flights").glob("*.log")
    assert command_line("log", str(tmp_path / "flights"), "--push", "me/flights") == 0
    assert hub.repositories == {"datasets/me/flights": {segment.name: segment.read_bytes()}}
    capsys.readouterr()
    assert command_line("log", str(tmp_path / "new"), "--pull", "me/flights") == 0
    assert "data set" in capsys.readouterr().out  # what is in it is shown
    assert [path.name for path in (tmp_path / "new").iterdir()] == [segment.name]
    assert [len(buffer.memory) for buffer in read_data_set(tmp_path / "new")] == [3]
    assert command_line("log", str(tmp_path / "new"), "--pull", "me/flights") == 2
    assert "exists: choose another folder" in capsys.readouterr().err
    hub.repositories["datasets/me/text"] = {"README.md": b"x"}
    assert command_line("log", str(tmp_path / "other"), "--pull", "me/text") == 2
    assert "me/text is no packet log" in capsys.readouterr().err


def test_a_file_that_is_too_large_is_not_pulled(
    hub: Hub,
    command_line: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(*words: str) -> str:
        asked = len(hub.gets)
        assert command_line(*words) == 2
        assert [path for path in hub.gets[asked:] if "/resolve/" in path] == []
        return capsys.readouterr().err

    hub.repositories["models/you/arm"] = {"policy.safetensors": bytes(2000)}
    hub.repositories["datasets/you/log"] = {f"000000000{k}.log": bytes(1000) for k in range(3)}
    monkeypatch.setattr("tmrl_like.cli.hub.MAX_POLICY_BYTES", 1000)
    line = "you/arm: policy.safetensors has 2000 bytes; a policy has at most 1000"
    assert line in refused("policies", "pull", "you/arm", str(tmp_path / "file"))
    pull = ("log", str(tmp_path / "new"), "--pull", "you/log")
    for limit in ("_LOG_BYTES", "_LOG_FILES"):
        with monkeypatch.context() as patch:
            patch.setattr(f"tmrl_like.cli.hub.{limit}", 2)
            assert "you/log has more than" in refused(*pull)
    hub.repositories["datasets/you/log"] = {"../1.log": b""}
    assert "you/log is no packet log" in refused(*pull)
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_written_whole_leaves_nothing(
    hub: Hub, command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["datasets/you/log"] = {f"000000000{k}.log": bytes([k]) for k in range(2)}
    copied = []

    def fill_up(source: Path, target: Path) -> None:
        copied.append(target.write_bytes(source.read_bytes()))
        if len(copied) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))

    (tmp_path / "new").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", fill_up)
        assert command_line("log", str(tmp_path / "new"), "--pull", "you/log") == 1
    assert list(tmp_path.rglob("*")) == [tmp_path / "new"]
    hub.gone.add("0000000001.log")
    assert command_line("log", str(tmp_path / "else" / "new"), "--pull", "you/log@main") == 1
    assert list(tmp_path.rglob("*")) == [tmp_path / "new"]


@pytest.mark.parametrize(
    "words",
    [
        ("policies", "push", "tiny@7", "me/arm"),  # nobody's token
        ("policies", "pull", "me/arm", "file"),
        ("log", "new", "--pull", "me/flights"),
        ("policies", "pull", "no/such/name", "file"),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    words: tuple[str, ...],
    hub: Hub,
    store: PolicyStore,
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    assert command_line(*words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tmrl-like: error: the hub: ")
    assert not list(tmp_path.glob("new/*"))


def test_without_the_library_the_extra_is_named(
    store: PolicyStore, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert command_line("policies", "push", "tiny@7", "me/arm") == 2
    assert "tmrl_like[hub]" in capsys.readouterr().err
