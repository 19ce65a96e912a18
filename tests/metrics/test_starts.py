import json
import platform
import subprocess
from pathlib import Path

import msgspec
import pytest

import tmrl_like
from tmrl_like.metrics.starts import describe_start, read_starts, write_starts


def test_a_start_says_what_it_takes_to_do_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (describe_start().git_commit, describe_start().git_changed) == ("", False)
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (work / "code.py").write_text("1")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    (work / "code.py").write_text("2")
    start = describe_start(task="Drone", command="train.py")
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert (start.git_commit, start.git_changed, start.folder) == (head, True, str(work))
    assert (start.task, start.command, start.tmrl_like) == ("Drone", "train.py", tmrl_like.__version__)
    assert start.python == platform.python_version()
    assert start.packages["numpy"]


def test_the_newest_starts_are_kept_as_a_list_that_people_can_read(tmp_path: Path) -> None:
    assert read_starts(tmp_path) == []
    starts = [msgspec.structs.replace(describe_start(), command=str(number)) for number in range(102)]
    write_starts(tmp_path, starts)
    assert [start.command for start in read_starts(tmp_path)] == [str(number) for number in range(2, 102)]
    text = (tmp_path / "run.json").read_text()
    assert text.count("\n") > 1000
    assert json.loads(text)[-1]["command"] == "101"
    (tmp_path / "run.json").write_text("[{")
    assert read_starts(tmp_path) == []
