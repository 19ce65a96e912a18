"""A part that has no descriptor left for a while: limits of running processes are lowered, and raised again."""

import contextlib
import itertools
import os

import psutil
import pytest
from chaos.chaos_rig import wait_for_checkpoint, wait_until
from running import assert_all_arrives_once, link_of, rig_in, said, wait_for_more

resource = pytest.importorskip("resource", reason="Windows knows no such limit")
if not hasattr(resource, "prlimit"):
    pytest.skip("limits of another process can be changed on Linux alone", allow_module_level=True)


@contextlib.contextmanager
def no_descriptor_left(pid):
    """The process can open nothing more; what is open stays open."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    free = next(number for number in itertools.count() if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.fault(
    "resources", "a worker has no descriptor left, and its link ends", "the robot drives on; the next link delivers all"
)
@pytest.mark.fault(
    "resources", "the trainer has no descriptor left", "training goes on, one line says so; checkpoints come again"
)
@pytest.mark.fault("resources", "the server has no descriptor left", "who is in stays in; who comes waits")
@pytest.mark.chaos
@pytest.mark.parametrize("transport", ["zmq", "tlspyo"])
def test_parts_without_a_descriptor_go_on_and_recover(tmp_path, transport):
    with rig_in(tmp_path, transport) as rig:
        lose_descriptors(rig)


def lose_descriptors(rig):
    server = rig.server_part()
    trainer = rig.trainer_part()
    worker = rig.worker_part(1)
    wait_for_checkpoint(rig.place)
    with no_descriptor_left(worker.pid):
        first = link_of(psutil.Process(worker.pid))
        first.kill()
        wait_until(lambda: said(rig, "work", "Too many open files"), 60.0, "the worker says so")
        wait_for_more(rig)
    wait_until(lambda: link_of(psutil.Process(worker.pid)) != first, 60.0, "another link")
    assert said(rig, "work", "Too many open files") == 1
    with no_descriptor_left(trainer.pid):
        wait_until(lambda: said(rig, "train", "Too many open files"), 60.0, "the trainer says so")
        wait_for_more(rig)
    wait_for_checkpoint(rig.place)
    assert said(rig, "train", "Too many open files") == 1
    with no_descriptor_left(server.pid):
        second = rig.worker_part(2)
        wait_for_more(rig, 300)
        wait_for_checkpoint(rig.place)  # the trainer is still served
    wait_for_more(rig)
    assert_all_arrives_once(rig, trainer, (worker, second))
    assert {number for number, _ in rig.appended()} == {1, 2}
