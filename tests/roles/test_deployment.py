"""A policy drives only if it is complete, fits, is finite and answers a probe; otherwise the last
good one stays.
"""

import itertools
import math

import pytest
from kit.fakes import CountingEnv

from tmrl_like.base.functional import partial
from tmrl_like.errors import NoWorkerError
from tmrl_like.trainer.schedule import TrainingOffline


def test_worker_and_trainer_say_why_a_policy_does_not_drive_and_the_next_good_one_does(
    inproc_house, until, caplog, monkeypatch
):
    monkeypatch.setattr("tmrl_like.trainer.trainer_link.refuse_diverged", lambda tensors: None)
    caplog.set_level("INFO")
    trainer = inproc_house.trainer()
    worker = inproc_house.worker(partial(CountingEnv, step_s=0.001), name="arm")
    fleet = trainer.link.fleet
    policy = trainer.training.agent.get_actor()
    trainer.link.broadcast_model(policy)
    inproc_house.start(worker.run)
    until(lambda: worker.policy_version == 1)
    policy.layer.bias.data.fill_(math.nan)
    trainer.link.broadcast_model(policy)
    until(lambda: fleet()["workers_with_alarm"] == 1)
    assert "worker arm: policy 2 is refused" in caplog.text
    assert "not finite" in caplog.text
    until(lambda: trainer.worker_versions == {"arm": 1})
    policy.layer.bias.data.fill_(0.5)
    trainer.link.broadcast_model(policy)
    until(lambda: trainer.worker_versions == {"arm": 3})
    until(lambda: fleet()["workers_with_alarm"] == 0)
    assert "worker arm: all is well again" in caplog.text


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
