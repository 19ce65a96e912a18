import platform
import subprocess

import tmrl_like
from tmrl_like.metrics.starts import Start, describe_start, read_starts, write_starts


def git(*command):
    named = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *command]
    return subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()


def test_a_start_says_what_it_takes_to_do_it_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert describe_start().git_commit == ""
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    git("init", "-q")
    git("commit", "-qm", "one", "--allow-empty")
    start = describe_start(task="Drone", command="train.py")
    assert (start.git_commit, start.folder) == (git("rev-parse", "HEAD"), str(work))
    assert (start.task, start.command) == ("Drone", "train.py")
    assert start.tmrl_like == tmrl_like.__version__
    assert start.python == platform.python_version()
    assert start.packages["numpy"]


def test_a_repository_that_git_cannot_read_has_no_commit_whatever_git_says(tmp_path, monkeypatch):
    (tmp_path / ".git").write_bytes(b"gitdir: /nowhere/\xff\n")
    monkeypatch.chdir(tmp_path)
    assert describe_start().git_commit == ""


def test_the_newest_starts_are_kept_as_a_list_that_people_can_read(tmp_path):
    assert read_starts(tmp_path) == []
    starts = [Start(command=str(number), folder="caf\udce9") for number in range(102)]
    write_starts(tmp_path, starts)
    assert read_starts(tmp_path) == [
        Start(command=str(number), folder="caf?") for number in range(2, 102)
    ]
    assert (tmp_path / "run.json").read_text().count("\n") > 1000
    (tmp_path / "run.json").write_text("[{")
    assert read_starts(tmp_path) == []
