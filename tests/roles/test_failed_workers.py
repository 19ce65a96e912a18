"""A trainer whose worker has failed goes on if another one drives, and ends otherwise."""

import itertools

import pytest

from tmrl_like.errors import NoWorkerError
from tmrl_like.trainer.schedule import TrainingOffline


def spoilt(*sample):
    raise ZeroDivisionError("the compressor is broken")


@pytest.fixture
def trainer(inproc_house, monkeypatch):
    """A trainer for which a minute passes whenever it looks for samples."""
    minutes = itertools.count()
    monkeypatch.setattr(TrainingOffline, "clock", lambda training: 60.0 * next(minutes))
    return inproc_house.trainer()


def test_a_script_whose_worker_has_failed_ends(inproc_house, trainer):
    worker = inproc_house.worker(sample_compressor=spoilt, name="arm")
    with pytest.raises(ZeroDivisionError):
        worker.run()
    worker.close()
    with pytest.raises(
        NoWorkerError, match="no other one drives: ZeroDivisionError: the compressor is broken"
    ):
        trainer.run()


def test_a_trainer_goes_on_waiting_while_another_worker_drives_or_is_started_again(
    inproc_house, trainer, until, caplog
):
    broken = inproc_house.worker(sample_compressor=spoilt, name="broken")
    with pytest.raises(ZeroDivisionError):
        broken.run()
    inproc_house.worker(name="fine")
    until(lambda: len(trainer.link.workers.versions()) == 2)
    inproc_house.start(trainer.run)
    until(lambda: "worker broken no longer drives (ZeroDivisionError" in caplog.text)
    assert "worker fine is here, and sends none" in caplog.text
