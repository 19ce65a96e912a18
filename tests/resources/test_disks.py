"""Disks that fail for a while, and shared memory that is full."""

import contextlib
import errno
import os
from collections.abc import Iterator

import pytest
from chaos.chaos_rig import wait_for_checkpoint, wait_until
from running import rig_in

from tmrl_like.base.files import Disk, disk
from tmrl_like.delivery import folder as folders
from tmrl_like.errors import ConfigError


@contextlib.contextmanager
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each change to what is on a disk fails."""

    def fail(*arguments, **options):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        for name in vars(Disk):
            if name[0] != "_":
                patch.setattr(disk, name, fail)
        yield


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.fault(
    "disk",
    "the trainer's disk fails (EIO)",
    "training goes on, a line for each thing that is kept; nothing acknowledged is lost",
)
def test_a_trainer_whose_disk_fails_goes_on_and_keeps_all_when_it_is_back(tmp_path, monkeypatch, caplog):
    with rig_in(tmp_path) as rig:
        rig.server()
        kept = {"checkpoint_path": rig.place.checkpoint, "policies_path": tmp_path / "policies"}
        trainer = rig.trainer(**kept, model_path=tmp_path / "newest.safetensors")
        worker = rig.worker(1)
        wait_for_checkpoint(rig.place)
        with failing(monkeypatch):
            wait_until(lambda: len(errors(caplog)) >= 3, 60.0, "log, policies and checkpoints say so")
            steps = trainer.training.total_updates
            wait_until(lambda: trainer.training.total_updates > steps + 20, 60.0, "training goes on")
        wait_for_checkpoint(rig.place)
        worker.stop()
        wait_until(lambda: not worker.link.status.unacknowledged_samples, 60.0, "all is stored")
        assert len(errors(caplog)) == 3
        trainer.close()
        again = rig.trainer(**kept)
        found = rig.settle(again)
        assert found.exactly_once, str(found)


@pytest.mark.fault("resources", "shared memory is full when a worker starts", "one line says what to do")
def test_a_worker_does_not_start_without_shared_memory(tmp_path, monkeypatch, full_disk):
    full_disk()
    monkeypatch.setattr(folders, "_SHARED_MEMORY", tmp_path / "disk")
    with rig_in(tmp_path) as rig, pytest.raises(ConfigError, match="No space left on device; make room"):
        rig.worker(1)
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["ballast"]


@pytest.mark.fault(
    "resources",
    "shared memory is full while a worker drives",
    "the robot drives on; what waits is in memory, and arrives once",
)
def test_a_worker_drives_on_without_shared_memory(tmp_path, monkeypatch, full_disk, caplog):
    monkeypatch.setattr(folders, "_SHARED_MEMORY", tmp_path / "disk")
    with rig_in(tmp_path) as rig:
        server = rig.server()
        trainer = rig.trainer()
        rig.worker(1, env={"ballast_bytes": 1_000})
        rig.wait_for_samples(trainer)
        ballast = full_disk()
        server.close()  # nothing leaves
        wait_until(lambda: errors(caplog), 60.0, "a line says so")
        made = sum(rig.produced().values())
        wait_until(lambda: sum(rig.produced().values()) > made + 200, 60.0, "the worker drives on")
        ballast.unlink()
        rig.server()
        rig.wait_for_samples(trainer, within_s=60.0)
        found = rig.settle(trainer)
        assert found.exactly_once, str(found)
    assert {text.partition(":")[0].partition(" to ")[0] for text in errors(caplog)} <= {"cannot write", "worker w1"}
