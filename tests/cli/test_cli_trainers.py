"""Several trainers on the command line."""

import re
import signal
import time

import psutil
import pytest

ENDLESS = "--trainer.epochs .inf --workers 2 --trainers 2"

pytestmark = pytest.mark.long


def ranks(run):
    """Return the trainer processes of a run, in order of rank."""
    trainers = [process for process in run.family() if "trainer" in process.cmdline()]
    return sorted(trainers, key=lambda process: process.environ()["RANK"])


def test_two_trainers_train_as_one_and_go_on_as_one_alone(start, own_home):
    run = start("run TINY --trainers 2 --workers 2 --proof")
    assert run.ends() == 0, run.output
    assert "proof passed: mean return" in run.output
    folder = own_home / ".tmrl_like/runs/tiny/checkpoints/training"
    assert (folder / "rank-1/log/0000000001.log").exists()
    assert {path.name for path in folder.glob("checkpoint-*")} == {"checkpoint-1"}
    again = start("run TINY --trainer.epochs 2")
    again.wait_for("resumed from")
    assert again.ends() == 0, again.output


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_rank_that_is_gone_ends_all(how, start, own_home):
    run = start("run TINY", ENDLESS, "--trainer.distributed.timeout_s 5")
    run.wait_for("training return")
    family = run.family()
    one = ranks(run)[1]
    started = time.monotonic()
    one.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    assert run.ends() == 1, run.output
    # including the wait of 5 s
    assert time.monotonic() - started < (15 if how == "killed" else 30)
    causes = {
        "killed": "the trainer rank 1 died: ended by signal SIGKILL",
        "frozen": "another one is gone, or took too",
    }
    assert causes[how] in run.output.splitlines()[-1]
    assert "Traceback" not in run.output
    assert not psutil.wait_procs(family, 10)[1]


def test_ctrl_c_ends_all_after_the_same_step(start, own_home):
    run = start("run TINY", ENDLESS)
    run.wait_for("training return")
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130, run.output
    assert "another one is gone" not in run.output
    assert "checkpoint written" in run.output


def test_torchrun_starts_trainers_that_sigterm_to_one_ends(start, own_home, free_port):
    start("server TINY", f"--server.port={free_port}").wait_for("listening")
    for k in (1, 2):
        start("worker TINY", f"--server.port={free_port}", "--name", f"w{k}")
    torchrun = (
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=3",
        "-m",
    )
    trainers = start(
        "trainer TINY", f"--server.port={free_port}", "--trainer.epochs .inf", module=torchrun
    )
    trainers.wait_for("round")
    psutil.Process(trainers.process.pid).children()[1].terminate()
    assert trainers.ends() == 0, trainers.output
    assert not re.search("RankError|Traceback", trainers.output)
