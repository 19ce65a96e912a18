import json
import os
import platform
import subprocess

import msgspec
import pytest

import tmrl_like
from tmrl_like.metrics.starts import describe_start, read_starts, write_starts


def git(*command):
    named = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *command]
    return subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()


def commit(*paths):
    """Commit files in a new repository in the working folder."""
    git("init", "-q")
    git("add", *paths)
    git("commit", "-qm", "one")


def test_a_start_says_what_it_takes_to_do_it_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (describe_start().git_commit, describe_start().git_changed) == ("", False)
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    (work / "code.py").write_text("1")
    commit(".")
    (work / "code.py").write_text("2")
    start = describe_start(task="Drone", command="train.py")
    assert (start.git_commit, start.git_changed, start.folder) == (
        git("rev-parse", "HEAD"),
        True,
        str(work),
    )
    assert (start.task, start.command, start.tmrl_like) == (
        "Drone",
        "train.py",
        tmrl_like.__version__,
    )
    assert start.python == platform.python_version()
    assert start.packages["numpy"]


@pytest.mark.skipif(os.name != "posix", reason="the program is a shell script")
def test_nothing_of_a_repository_runs_or_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # the user's own settings
    for name, value in {"COUNT": "1", "KEY_0": "core.abbrev", "VALUE_0": "12"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-$1\ncat\n")
    program.chmod(0o755)
    (tmp_path / "code.py").write_text("1")
    (tmp_path / ".gitattributes").write_text("*.py filter=o=s\n")
    commit("code.py", ".gitattributes")
    settings = {
        "core.fsmonitor": program,
        "filter.o=s.clean": f"{program} clean",
        "filter.o=s.required": "true",
    }
    for name, value in settings.items():
        git("config", name, str(value))
    # git examines the file again, and would normally update its index
    os.utime(tmp_path / "code.py", (1, 1))
    index = (tmp_path / ".git" / "index").read_bytes()
    assert not describe_start().git_changed
    assert describe_start().git_commit
    assert [path.name for path in tmp_path.glob("ran-*")] == []
    assert (tmp_path / ".git" / "index").read_bytes() == index


def test_the_newest_starts_are_kept_as_a_list_that_people_can_read(tmp_path):
    assert read_starts(tmp_path) == []
    starts = [
        msgspec.structs.replace(describe_start(), command=str(number)) for number in range(102)
    ]
    write_starts(tmp_path, starts)
    assert [start.command for start in read_starts(tmp_path)] == [
        str(number) for number in range(2, 102)
    ]
    text = (tmp_path / "run.json").read_text()
    assert text.count("\n") > 1000
    assert json.loads(text)[-1]["command"] == "101"
    (tmp_path / "run.json").write_text("[{")
    assert read_starts(tmp_path) == []
