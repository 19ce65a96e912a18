"""Several trainers on the command line."""

import re
import signal
import time

import psutil
import pytest
from kit import ports

TORCHRUN = (
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node=2",
    "--max-restarts=3",
    "-m",
)

pytestmark = pytest.mark.long


@pytest.fixture
def port(start, free_port):
    """The port of a server with two workers."""
    port = f"--server.port={free_port}"
    start("server TINY", port).wait_for("listening")
    for k in (1, 2):
        start("worker TINY", port, "--name", f"worker-{k}")
    return port


def test_two_trainers_train_as_one_and_go_on_as_one_alone(start, port, own_home):
    trainers = start("trainer TINY", port, module=TORCHRUN)
    assert trainers.ends() == 0, trainers.output
    assert trainers.output.count("epoch 0 round 0: ") == 1
    folder = own_home / ".tmrl_like/runs/tiny/checkpoints/training"
    assert (folder / "rank-1/log/0000000001.log").exists()
    assert {path.name for path in folder.glob("checkpoint-*")} == {"checkpoint-1"}
    again = start("trainer TINY --trainer.epochs 2", port)
    again.wait_for("resumed from")
    assert again.ends() == 0, again.output


def test_a_rank_that_stands_still_ends_the_other(start, port, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(ports.free_port()))
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    ranks = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        endless = "--trainer.epochs .inf --trainer.distributed.timeout_s 5"
        ranks.append(start("trainer TINY", port, endless))
    first, second = ranks
    first.wait_for("training return")
    started = time.monotonic()
    second.process.send_signal(signal.SIGSTOP)
    assert first.ends() == 1, first.output
    assert time.monotonic() - started < 30  # including the wait of 5 s
    assert "another one is gone, or took too" in first.output.splitlines()[-1]
    assert "Traceback" not in first.output


def test_torchrun_starts_trainers_that_sigterm_to_one_ends(start, port):
    trainers = start("trainer TINY", port, "--trainer.epochs .inf", module=TORCHRUN)
    trainers.wait_for("round")
    psutil.Process(trainers.process.pid).children()[1].terminate()
    assert trainers.ends() == 0, trainers.output
    assert "checkpoint written" in trainers.output
    assert not re.search("RankError|Traceback", trainers.output)
