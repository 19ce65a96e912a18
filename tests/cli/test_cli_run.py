import contextlib
import json
import re
import shlex
import signal
import sys
import types
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cli_commands import TINY, Command
from kit.waiting import until

from tmrl_like.config.run_lock import use_run
from tmrl_like.config.settings import Settings
from tmrl_like.errors import ConfigError
from tmrl_like.metrics.starts import read_starts

Start = Callable[..., Command]


def test_a_run_in_one_thread_says_that_it_starts_before_it_loads_torch(
    command_line: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    stand_in = types.ModuleType("train")
    stand_in.main = lambda _: said.append(capsys.readouterr().out) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tmrl_like.cli.train", stand_in)
    monkeypatch.setattr("tmrl_like.cli.train", stand_in, raising=False)
    assert command_line("run", TINY, "--in-process") == 0
    assert said == [f"run tiny ({TINY}) starts: torch is loaded first\n"]


def all_gone(family: list[psutil.Process], within_s: float = 60.0) -> bool:
    return not psutil.wait_procs(family, within_s)[1]


def test_a_run_trains_proves_it_and_leaves_nothing_behind(
    start: Start, own_home: Path, command_line: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    run = start("run", TINY, "--proof", "--run_name", "r6")
    run.wait_for("training")
    family = run.family()
    run.wait_for(" trained tests")  # two tests, one after the other, import torch each
    assert run.ends() == 0, run.output
    assert all_gone(family)
    assert "proof passed: mean return" in run.output
    tests = re.findall(r"^proof: \d of 5 (\w+) tests$", run.output, re.MULTILINE)
    assert tests == sorted(tests, reverse=True)  # the untrained policy's are over before the trained one's begin
    assert set(tests) == {"untrained", "trained"}
    folder = own_home / ".tmrl_like" / "runs" / "r6"
    assert f"picture: {folder / 'proof.png'}" in run.output
    assert (folder / "proof.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "best" / "rollout.npz").is_file()
    proof = json.loads((folder / "proof.json").read_text())
    assert proof["passed"]
    assert len(proof["untrained"]) == len(proof["trained"]) == 5
    assert "worker" in (folder / "run.log").read_text()
    assert "Traceback" not in run.output
    hint = shlex.split(run.output.splitlines()[-1].partition("try: tmrl-like ")[2])
    assert command_line(*hint, "--episodes", "1") == 0
    assert str(folder) in "".join(capsys.readouterr().out.split())

    again = start(
        *("run", TINY, "--proof", "--workers", "2", "--agent.gain", "0.0", "--trainer.rounds", "1"),
        *("--proof.episodes", "2", "--run_name", "r6"),
    )
    assert again.ends() == 1, again.output
    assert "the earlier run of this name is now" in again.output
    assert "worker-2" in again.output
    assert "proof FAILED: mean return" in again.output
    assert len(list(folder.parent.iterdir())) == 2


def test_a_run_goes_on_without_its_page_and_one_ctrl_c_ends_everything(start: Start, own_home: Path) -> None:
    run = start("run", TINY, "--page", "--trainer.epochs", ".inf")
    url = run.wait_for("tiny is shown at ").partition("shown at ")[2].strip()
    run.wait_for("samples")
    with urllib.request.urlopen(f"{url}metrics", timeout=20) as answer:
        assert b"tmrl_trainers 1\n" in answer.read()
    page = run.part("page")
    page.kill()
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=20)
    assert run.process.poll() is None
    until(lambda: page.status() == psutil.STATUS_ZOMBIE)
    family = [part for part in run.family() if part != page]
    assert len(family) == 4  # with the link
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130, run.output
    assert all_gone(family)
    assert "Traceback" not in run.output
    folder, given = own_home / ".tmrl_like" / "runs" / "tiny", f"{TINY} --trainer.epochs=.inf"
    assert f"everything of this run is in {folder}; try: tmrl-like test {given}" in run.output
    (begun,) = read_starts(folder)
    assert (begun.task, begun.ended, begun.experiment_file) == ("TinyEnv", "stopped", TINY)
    assert begun.command.endswith(f"run {TINY} --page --trainer.epochs .inf")
    assert "run_name: tiny" in begun.experiment


def test_a_last_checkpoint_that_cannot_be_written_is_reported_after_ctrl_c_too(start: Start, own_home: Path) -> None:
    folder = own_home / ".tmrl_like/runs/tiny/checkpoints/training"
    (folder / "checkpoint-1").mkdir(parents=True)  # in the way
    run = start("run", TINY, "--trainer.epochs", ".inf")
    run.wait_for("samples")
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 1, run.output
    assert run.output.count("Traceback") == 0
    assert "the last checkpoint of this training is missing" in run.output.splitlines()[-1]


@pytest.mark.fault("processes", "`tmrl-like run` is killed", "its server, worker and trainer end")
@pytest.mark.long
def test_parts_do_not_outlive_a_run_that_was_killed(start: Start) -> None:
    run = start("run", TINY, "--trainer.epochs", ".inf")
    run.wait_for("training return")
    family = run.family()
    run.process.kill()
    run.ends()
    assert all_gone(family)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        pytest.param(
            ["--agent.fails", "true"],
            "the trainer died: ended with exit code 1: ZeroDivisionError: the agent of this",
            marks=pytest.mark.long,
        ),
        (["--env.ends_by", "signal"], "the worker died: ended by signal SIGKILL"),
        (["--agent.gian", "1"], "agent.init_args.gian: TinyAgent has no such argument; did you mean gain?"),
    ],
)
def test_if_one_part_dies_all_end_and_the_cause_is_the_last_line(
    changes: list[str], cause: str, start: Start, own_home: Path
) -> None:
    where = ["--run_name", "r6"]
    (own_home / ".tmrl_like/runs/r6/checkpoints/training/checkpoint-1").mkdir(parents=True)  # in the way
    run = start("run", TINY, "--trainer.epochs", ".inf", *where, *changes)
    assert run.ends() == (2 if "gian" in cause else 1)
    assert run.output.splitlines()[-1].startswith("tmrl-like: error: ")
    assert cause in run.output.splitlines()[-1]
    assert ("the trainer, too: the last checkpoint of this training is missing" in run.output) == ("signal" in changes)


@pytest.mark.fault("people", "a second run of the same name is started", "it is refused before anything starts")
def test_a_run_keeps_its_folder_from_another_of_its_name_until_it_is_killed(
    start: Start,
    own_home: Path,
    command_line: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    until: Callable[..., None],
) -> None:
    def is_free() -> bool:
        with contextlib.suppress(ConfigError), use_run(Settings(run_name="tiny").paths, "run", alone=True):
            return True
        return False

    run = start("run", TINY, "--trainer.epochs", ".inf")
    run.wait_for("run tiny")
    for second in (["run", TINY], ["run", TINY, "--fresh"], ["run", TINY, "--proof"], ["trainer", TINY]):
        assert command_line(*second, "--server.port=0") == 2
        output = capsys.readouterr()
        assert f"the run tiny is in use by process {run.process.pid} (run, since 2" in output.err
        assert output.err.count("\n") == 1
        assert not output.out
    run.process.kill()
    run.ends()
    until(is_free, within_s=60.0)
    assert len(list((own_home / ".tmrl_like" / "runs").glob("*"))) <= 1


def test_a_run_on_a_taken_port_touches_nothing(start: Start, own_home: Path, free_port: int) -> None:
    start("server", TINY, f"--server.port={free_port}").wait_for("listening")
    folder = own_home / ".tmrl_like" / "runs" / "tiny"
    folder.mkdir(parents=True)
    run = start("run", TINY, "--fresh", f"--server.port={free_port}")
    assert run.ends() == 1
    assert str(free_port) in run.output.splitlines()[-1]
    assert [p.name for p in folder.parent.iterdir()] == ["tiny"]
