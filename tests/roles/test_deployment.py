"""A policy drives only if it is complete, fits, is finite and answers a probe; otherwise the last
good one stays.
"""

import math

import pytest
from kit.fakes import CountingEnv

from tmrl_like.base.functional import partial
from tmrl_like.errors import NoWorkerError


def test_worker_and_trainer_say_why_a_policy_does_not_drive_and_the_next_good_one_does(
    inproc_house, until, caplog, monkeypatch
):
    monkeypatch.setattr("tmrl_like.trainer.trainer_link.refuse_diverged", lambda tensors: None)
    server = inproc_house.server()
    trainer, worker = (
        inproc_house.trainer(),
        inproc_house.worker(partial(CountingEnv, step_s=0.001), name="arm"),
    )
    caplog.set_level("INFO")
    policy = trainer.training.agent.get_actor()
    trainer.link.broadcast_model(policy)
    inproc_house.start(worker.run)
    until(lambda: worker.policy_version == 1)
    policy.layer.bias.data.fill_(math.nan)
    for _ in range(2):
        trainer.link.broadcast_model(policy)
        until(lambda: server.counters.policies == trainer.link.newest_version)
        until(lambda: trainer.link.fleet()["workers_with_alarm"] == 1)
    assert "not finite" in caplog.text
    until(lambda: trainer.worker_versions == {"arm": 1})
    assert trainer.link.fleet()["policy_lag_versions"] == trainer.link.newest_version - 1
    policy.layer.bias.data.fill_(0.5)
    newest = trainer.link.broadcast_model(policy)
    until(lambda: trainer.worker_versions == {"arm": newest})
    assert trainer.link.fleet()["policy_lag_versions"] == 0
    until(lambda: trainer.link.fleet()["workers_with_alarm"] == 0)
    lines = [r.message for r in caplog.records]
    assert len([line for line in lines if line.startswith("worker arm: policy")]) == 1
    assert "worker arm: all is well again" in lines


def test_a_script_whose_worker_has_failed_ends(inproc_house, monkeypatch):
    monkeypatch.setattr("tmrl_like.trainer.schedule._FIRST_REMINDER_S", 0.01)
    trainer = inproc_house.trainer()

    def drive():
        with (
            inproc_house.worker(sample_compressor=spoilt, name="arm") as worker,
            pytest.raises(ZeroDivisionError),
        ):
            worker.run()

    failing = inproc_house.start(drive)
    with pytest.raises(
        NoWorkerError, match="no other one drives: ZeroDivisionError: the compressor is broken"
    ):
        trainer.run()
    failing.join()


def test_a_trainer_goes_on_waiting_while_another_worker_drives_or_is_started_again(
    inproc_house, monkeypatch, until, caplog
):
    monkeypatch.setattr("tmrl_like.trainer.schedule._FIRST_REMINDER_S", 0.01)
    trainer = inproc_house.trainer()
    broken = inproc_house.worker(sample_compressor=spoilt, name="broken")
    with pytest.raises(ZeroDivisionError):
        broken.run()
    inproc_house.worker(name="fine")
    until(lambda: len(trainer.link.workers.versions()) == 2)
    running = inproc_house.start(trainer.run)
    until(lambda: "worker broken no longer drives (ZeroDivisionError" in caplog.text)
    assert "worker fine is here, and sends none" in caplog.text
    broken.close()
    trainer.stop()
    running.join()


def spoilt(*sample):
    raise ZeroDivisionError("the compressor is broken")
