"""Clocks that are wrong by an hour, or jump by one: samples are as old as they are."""

import time

import pytest
from chaos.chaos_rig import wait_until, work
from running import rig_in, run_in_processes

from tmrl_like.base import clocks

OFF = """
import time
from pathlib import Path

off, real = Path({off!r}), time.time
time.time = lambda: real() + float(off.read_text())
"""


def work_by(place, number, code):
    """A worker by whose clock it is another time."""
    exec(code, {})
    clocks.EPOCH_S = time.time() - clocks.up_s()  # the process was forked from one that had it
    work(place, number, {})


@pytest.mark.fault(
    "clocks",
    "a worker's or the trainer's clock is an hour off, or jumps by one",
    "with a limit of a minute on their age all samples train; a line says whose clock is off by how much",
)
@pytest.mark.long  # processes, and beats that come twice a second
def test_with_clocks_that_jump_by_an_hour_samples_go_on_to_train(tmp_path, monkeypatch, caplog):
    off, real = tmp_path / "off", time.time

    def jump(seconds):
        (tmp_path / "draft").write_text(str(seconds))
        (tmp_path / "draft").replace(off)

    code = OFF.format(off=str(off))
    run_in_processes(code, tmp_path, monkeypatch)  # in the link
    jump(-3600.0)
    with rig_in(tmp_path) as rig:
        rig.server()
        trainer = rig.trainer(training={"max_sample_age_s": 60.0})
        rig._part(work_by, rig.place, 1, code)
        rig.wait_for_samples(trainer, 100, within_s=60.0)
        wait_until(lambda: "worker w1 is 3600 s behind" in caplog.text, 60.0, "a line")
        jump(0.0)
        rig.wait_for_samples(trainer, 100, within_s=60.0)
        jump(3600.0)
        rig.wait_for_samples(trainer, 100, within_s=60.0)
        wait_until(lambda: "worker w1 is 3600 s ahead of" in caplog.text, 60.0, "a line")
        for seconds in (3600.0, 0.0, -3600.0):
            monkeypatch.setattr(time, "time", lambda seconds=seconds: real() + seconds)
            rig.wait_for_samples(trainer, 100, within_s=60.0)
        assert trainer.link.fleet()["dropped_stale_samples_total"] == 0
        monkeypatch.undo()
