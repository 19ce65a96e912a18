"""Disks that fail temporarily, and shared memory that is full."""

import contextlib
import errno
import threading
from collections import Counter
from dataclasses import replace

import pytest
from chaos.chaos_rig import SMALL, wait_for_checkpoint
from kit.failing import failing
from kit.waiting import until
from running import all_is_stored, assert_settled, drives_on, rig_in, trains_on

from tmrl_like.base.files import Disk, disk
from tmrl_like.delivery import folder as folders
from tmrl_like.errors import ConfigError


@contextlib.contextmanager
def failing_disk(monkeypatch):
    """Make each change on a disk fail."""
    with monkeypatch.context() as patch:
        for name in vars(Disk):
            if name[0] != "_":
                patch.setattr(disk, name, failing(errno.EIO))
        yield


def errors(caplog):
    return [record.message for record in caplog.records if record.levelname == "ERROR"]


def alarms(worker):
    """Return the present alarms of the control loop's files and of the link."""
    return [alarm for alarm in (worker.loop.samples.alarm, worker.link.status.alarm) if alarm]


@pytest.mark.fault(
    "disk",
    "the trainer's disk fails (EIO)",
    "training goes on, a line for each thing that is kept; nothing acknowledged is lost",
)
def test_a_trainer_whose_disk_fails_goes_on_and_keeps_all_when_it_is_back(
    tmp_path, monkeypatch, caplog
):
    with rig_in(tmp_path) as rig:
        rig.server()
        kept = {"checkpoint_path": rig.place.checkpoint, "policies_path": tmp_path / "policies"}
        trainer = rig.trainer(**kept, model_path=tmp_path / "newest.safetensors")
        worker = rig.worker(1, env={"period_s": 0.002})
        wait_for_checkpoint(rig.place)
        with failing_disk(monkeypatch):
            until(lambda: len(errors(caplog)) >= 3, "log, policies and checkpoints say so")
            trains_on(trainer, 20)
        wait_for_checkpoint(rig.place)
        worker.stop()
        all_is_stored(worker)
        assert len(errors(caplog)) == 3
        trainer.close()
        again = rig.trainer(**kept)
        assert_settled(rig, again)


@pytest.mark.fault(
    "resources", "shared memory is full when a worker starts", "one line says what to do"
)
def test_a_worker_does_not_start_without_shared_memory(tmp_path, monkeypatch, full_disk):
    full_disk()
    monkeypatch.setattr(folders, "shared_memory", lambda: tmp_path / "disk")
    with (
        rig_in(tmp_path) as rig,
        pytest.raises(ConfigError, match="No space left on device; make room"),
    ):
        rig.worker(1)
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["ballast"]


@pytest.mark.fault(
    "disk",
    "a worker's spool and the trainer's log are on a disk that is full to the last byte, and then "
    "has room",
    "the robot drives on, training goes on, one line of each; what finds no room is counted, all "
    "else is stored",
)
@pytest.mark.long  # disks are retried every two seconds
def test_a_spool_and_a_trainers_log_on_a_full_disk_go_on_when_there_is_room(
    tmp_path, full_disk, caplog
):
    with rig_in(tmp_path) as rig:
        rig.server()
        trainer = rig.trainer(checkpoint_path=tmp_path / "disk" / "checkpoint")
        spool = {
            "spool": tmp_path / "disk" / "spool",
            "outbox": replace(SMALL, spool_max_bytes=1 << 20),
        }
        worker = rig.worker(1, env={"ballast_bytes": 1_000}, **spool)
        rig.wait_for_samples(trainer)
        assert not alarms(worker)
        ballast = full_disk()
        until(lambda: alarms(worker), "the worker says so")
        until(
            lambda: len(errors(caplog)) >= 3,
            "the trainer says so: log, checkpoint, and of the worker",
        )
        trains_on(trainer, 10)
        drives_on(rig, 100)
        ballast.unlink()
        until(lambda: not alarms(worker), "the alarm is over", 20.0)
        worker.stop()
        all_is_stored(worker)
        lost, made = worker.link.status.lost_samples, sum(rig.produced().values())
        until(lambda: rig.arrived(trainer) + lost >= made, "all has arrived, or is counted as lost")
        found = rig.settle(trainer, within_s=0.0)
        assert len(found.lost) == lost, str(found)
        assert found.doubled == found.out_of_order == [], str(found)
    said = Counter(text.partition(":")[0] for text in errors(caplog))
    assert max(said.values()) == 1, said


@pytest.mark.fault(
    "disk",
    "each sync of spool, log, checkpoint and weights takes seconds",
    "the robot drives on, training goes on, one line; what is stored is acknowledged later",
)
@pytest.mark.long
def test_on_a_slow_disk_acknowledgements_wait_and_nothing_else(tmp_path, monkeypatch, caplog):
    is_fast, waiting = threading.Event(), threading.Semaphore(0)

    def slow(*arguments):
        if not is_fast.is_set():
            waiting.release()
            is_fast.wait(3.0)

    with rig_in(tmp_path) as rig:
        rig.server()
        kept = {"checkpoint_path": rig.place.checkpoint, "policies_path": tmp_path / "policies"}
        trainer = rig.trainer(**kept)
        worker = rig.worker(
            1,
            link_process=False,
            spool=tmp_path / "spool",
            model_path=tmp_path / "weights.safetensors",
        )
        rig.wait_for_samples(trainer)
        wait_for_checkpoint(rig.place)
        for name in ("sync", "sync_folder"):
            monkeypatch.setattr(disk, name, slow)
        for _ in range(4):
            assert waiting.acquire(timeout=60.0)
        trains_on(trainer, 50)
        drives_on(rig, 500)
        until(lambda: "is slow: it takes more than" in caplog.text, "one line says so")
        rig.wait_for_samples(trainer, 100, within_s=60.0)
        is_fast.set()
        worker.stop()
        all_is_stored(worker)
        assert caplog.text.count("is slow: it takes more than") == 1
        trainer.close()
        assert_settled(rig, rig.trainer(**kept))
