"""`tmrl-like run`: all parts as separate processes or in one."""

import re
import shlex
import signal
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest
from cli_commands import TINY
from kit.failing import with_a_full_disk, without_a_reader
from kit.systems import has_dev_full
from kit.waiting import until

from tmrl_like.cli.places import find_place
from tmrl_like.cli.run import show
from tmrl_like.config.loading import settings_of
from tmrl_like.config.run_lock import use_run
from tmrl_like.config.settings import Settings
from tmrl_like.metrics.starts import Start, read_starts, write_starts

ENDLESS = "--trainer.epochs .inf"


@pytest.fixture
def folder(own_home):
    """The folder of the run `tiny`."""
    return own_home / ".tmrl_like/runs/tiny"


def all_gone(family):
    return not psutil.wait_procs(family, 60.0)[1]


def test_a_run_trains_proves_it_and_leaves_nothing_behind(start, folder, out_of):
    folder.mkdir(parents=True)
    (folder / "notes.txt").touch()  # from an earlier run
    # what its environment and agent print is not what the parts of a run say to it
    talkative = "--env tiny.TalkativeEnv --agent tiny.TalkativeAgent"
    run = start("run TINY --proof --workers 2 --server.host robots.example", talkative)
    run.wait_for("waiting for the first samples")
    family = run.family()
    run.wait_for(" trained tests")  # two tests in turn, which each import torch
    assert run.ends() == 0, run.output
    assert all_gone(family)
    assert "the earlier run of this name is now" in run.output
    shown = ("waiting for the trainer", "epoch 0 round 0: ", "trained for ", "checkpoint written")
    assert all(words in run.output for words in shown)
    assert "proof passed: mean return" in run.output
    tests = re.findall(r"^proof: \d of 5 (\w+) tests$", run.output, re.MULTILINE)
    # the untrained policy's tests end before the trained one's begin
    assert tests == sorted(tests, reverse=True)
    assert set(tests) == {"untrained", "trained"}
    assert f"picture: {folder / 'proof.png'}" in run.output
    assert (folder / "proof.png").read_bytes().startswith(b"\x89PNG")
    # `tmrl-like run tiny` serves other machines again
    assert settings_of(find_place("tiny").open()).server.listens_on == "0.0.0.0"
    kept = (folder / "run.log").read_text()
    assert all(words in kept for words in (*shown, " server ", " worker-2 ", "proof: 5 of 5 "))
    assert "Traceback" not in run.output
    hint = shlex.split(run.output.splitlines()[-1].partition("try: tmrl-like ")[2])
    assert (folder / "best/rollout.npz").is_file()
    assert str(folder) in "".join(out_of(*hint, "--episodes 1").split())
    assert len(list(folder.parent.glob("tiny*/notes.txt"))) == 1


def test_a_run_that_has_no_file_starts_over_with_the_experiment_saved_in_it(start, folder):
    text = Path(TINY).read_text()
    write_starts(folder, [Start(time="now", experiment=text, experiment_file=TINY)])
    run = start("run tiny --fresh --trainer.rounds 1 --trainer.steps 1")
    assert run.ends() == 0, run.output
    assert f"run tiny ({TINY} (as it was kept))\n" in run.output
    assert "the earlier run of this name is now" in run.output
    assert find_place("tiny").open().data["trainer"]["rounds"] == 1
    assert "try: tmrl-like test tiny --trainer.rounds=1" in run.output


@pytest.mark.long
def test_a_proof_that_fails_is_a_failure_of_the_run(start):
    run = start("run TINY --proof --agent.gain 0.0 --proof.episodes 2")
    assert run.ends() == 1, run.output
    assert "proof FAILED: mean return" in run.output


def test_a_run_goes_on_without_its_page_and_one_ctrl_c_ends_everything(start, folder):
    run = start("run TINY --page", ENDLESS)
    url = run.wait_for("tiny is shown at ").partition("shown at ")[2].strip()
    run.wait_for("epoch 0 round 0")
    with urllib.request.urlopen(f"{url}metrics", timeout=20) as answer:
        assert b"tmrl_trainers 1\n" in answer.read()
    page = run.part("page")
    page.kill()
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=20)
    assert run.process.poll() is None
    until(lambda: page.status() == psutil.STATUS_ZOMBIE)
    until(lambda: len(run.family()) == 5)  # including the dead page, and the link
    family = [part for part in run.family() if part != page]
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130, run.output
    assert all_gone(family)
    assert "Traceback" not in run.output
    hint = f"try: tmrl-like test {TINY} --trainer.epochs=.inf"
    assert f"everything of this run is in {folder}; {hint}" in run.output
    (begun,) = read_starts(folder)
    assert (begun.task, begun.ended, begun.experiment_file) == ("TinyEnv", "stopped", TINY)
    assert begun.command.endswith(f"run {TINY} --page --trainer.epochs .inf")
    assert "run_name: tiny" in begun.experiment


@has_dev_full
def test_a_run_ends_as_usual_without_room_for_its_log_and_at_another_address(start, folder):
    folder.mkdir(parents=True)
    (folder / "run.log").symlink_to("/dev/full")
    run = start("run TINY --trainer.rounds 1 --server.bind 127.0.0.2")
    assert run.ends() == 0, run.output
    assert "Traceback" not in run.output


@has_dev_full
@pytest.mark.parametrize("opened", [without_a_reader, with_a_full_disk])
def test_a_run_goes_on_if_nothing_takes_its_lines(opened, monkeypatch):
    """`tmrl-like run … | tee log`: Ctrl-C ends both, and the run has yet to end its parts."""
    stdout = opened()
    monkeypatch.setattr(sys, "stdout", stdout)
    show("a line")
    show("ending")
    with pytest.raises(OSError, match=r"space|pipe"):
        stdout.close()


def test_a_trainer_that_is_killed_is_not_reported_with_its_progress(start):
    run = start("run TINY", ENDLESS)
    run.wait_for("epoch 0 round 0")
    run.part("trainer").kill()
    assert run.ends() == 1
    cause = run.output.splitlines()[-1]
    assert "the trainer died: ended by signal SIGKILL: " in cause
    assert "epoch " not in cause


@pytest.mark.long
def test_a_person_hears_the_bell_and_reads_what_to_do(start):
    run = start("run TINY", ENDLESS, "--worker.person.reset_prompt", "'put it back'")
    assert "waits for a person: put it back" in run.wait_for("\a")


@pytest.mark.parametrize(
    ("changes", "code", "cause"),
    [
        pytest.param(
            ["--agent.fails", "true"],
            1,
            "the trainer died: ended with exit code 1: ZeroDivisionError: the agent of this",
            marks=pytest.mark.long,
        ),
        (["--env.ends_by", "signal"], 1, "the worker died: ended by signal SIGKILL"),
        (
            ["--agent.gian", "1"],
            2,
            "agent.init_args.gian: TinyAgent has no such argument; did you mean gain?",
        ),
    ],
)
def test_if_one_part_dies_all_end_and_the_cause_is_the_last_line(
    changes, code, cause, start, folder
):
    # in the way of the last checkpoint
    (folder / "checkpoints/training/checkpoint-1").mkdir(parents=True)
    run = start("run TINY", ENDLESS, *changes)
    assert run.ends() == code
    assert run.output.splitlines()[-1].startswith("tmrl-like: error: ")
    assert cause in run.output.splitlines()[-1]
    assert ("the trainer, too: the last checkpoint of this training is missing" in run.output) == (
        "signal" in changes
    )


@pytest.mark.fault("processes", "`tmrl-like run` is killed", "its server, worker and trainer end")
@pytest.mark.fault(
    "people", "a second run of the same name is started", "it is refused before anything starts"
)
def test_a_run_keeps_its_folder_for_itself_until_it_is_killed_and_its_parts_have_ended(
    start, folder, typed
):
    run = start("run TINY", ENDLESS)
    run.wait_for("epoch 0 round 0")
    family = run.family()
    for second in ("run TINY", "run TINY --fresh", "run TINY --proof", "trainer TINY"):
        printed = typed(second, ENDLESS, "--server.port=0", code=2)
        assert f"the run tiny is in use by process {run.process.pid} (run, since 2" in printed.err
        assert (printed.err.count("\n"), printed.out) == (1, "")
    run.process.kill()
    run.ends()
    assert all_gone(family)
    with use_run(Settings(run_name="tiny").paths, "run", alone=True):
        assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("mistake", "said", "code"),
    [
        ("--agent tiny.NoSuchAgent", "NoSuchAgent", 2),
        ("--takeover tiny.NoSuchDriver", "NoSuchDriver", 2),
        ("--server.port PORT", "is taken", 1),
    ],
)
def test_a_run_that_cannot_begin_leaves_the_earlier_run_where_it_is(
    port_is_taken, mistake, said, code, folder, refused
):
    folder.mkdir(parents=True)
    (folder / "notes.txt").touch()
    assert said in refused("run TINY --fresh", mistake, code=code)
    assert [path.name for path in folder.parent.rglob("*")] == ["tiny", "notes.txt"]
