"""Parts that temporarily have no file descriptor or thread left continue, and recover."""

import contextlib
import itertools
import os
import sys
from pathlib import Path

import pytest
from chaos.chaos_rig import link_of, wait_for_checkpoint
from kit.waiting import until
from running import assert_all_arrives_once, rig_in, said, wait_for_more

if sys.platform != "linux":
    pytest.skip("limits of another process can be changed on Linux alone", allow_module_level=True)

import resource


@contextlib.contextmanager
def no_descriptor_left(pid):
    """Let a process open no further files; those already open stay open."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    free = next(number for number in itertools.count() if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def pids_group():
    """Make a control group in which nothing can be started; skip the test if that is not
    possible.
    """
    for root in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = root / f"tmrl-like-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                (group / "pids.max").write_text("0")
            except OSError:
                group.rmdir()
                continue
            return group
    pytest.skip("the threads of a process of root's cannot be limited here")


@contextlib.contextmanager
def no_thread_left(pid):
    """Let a process start no further threads or processes; existing ones continue."""
    if os.geteuid():
        before = resource.prlimit(pid, resource.RLIMIT_NPROC)
        resource.prlimit(pid, resource.RLIMIT_NPROC, (1, before[1]))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_NPROC, before)
        return
    group = pids_group()  # the limit above does not apply to root
    (group / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


SHORTAGES = {  # how to cause it, and what the trainer's and the worker's logs say
    "descriptors": (no_descriptor_left, "samples are in memory only", "Too many open files"),
    "threads": (no_thread_left, "", "cannot be started"),
}


@pytest.mark.fault(
    "resources",
    "a worker has no descriptor left, and its link ends",
    "the robot drives on; the next link delivers all",
)
@pytest.mark.fault(
    "resources",
    "the trainer has no descriptor left",
    "training goes on, one line says so; checkpoints come again",
)
@pytest.mark.fault(
    "resources", "the server has no descriptor left", "who is in stays in; who comes waits"
)
@pytest.mark.fault(
    "resources",
    "server, trainer and worker can start neither thread nor process",
    "samples and checkpoints go on; a link that is killed meanwhile is followed by another; "
    "nothing is lost",
)
@pytest.mark.chaos
@pytest.mark.parametrize("transport", ["zmq", "tlspyo"])
@pytest.mark.parametrize("shortage", SHORTAGES)
def test_parts_that_are_short_of_something_go_on_and_recover(tmp_path, transport, shortage):
    none_left, of_trainer, of_worker = SHORTAGES[shortage]
    with rig_in(tmp_path, transport) as rig:
        server, trainer, worker = rig.server_part(), rig.trainer_part(), rig.worker_part(1)
        wait_for_checkpoint(rig.place)
        with none_left(server.pid):
            second = rig.worker_part(2)
            wait_for_more(rig, 300)
            wait_for_checkpoint(rig.place)  # the trainer is still served
        with none_left(trainer.pid):
            if of_trainer:
                until(lambda: said(rig, "train", of_trainer), "the trainer says so")
            else:
                wait_for_checkpoint(rig.place)
            wait_for_more(rig)
        wait_for_checkpoint(rig.place)
        with none_left(worker.pid):
            first = link_of(worker)
            first.kill()
            until(lambda: said(rig, "work", of_worker), "the worker says so")
            wait_for_more(rig, 300)
        until(lambda: link_of(worker) not in (None, first), "another link")
        wait_for_more(rig)
        assert said(rig, "work", of_worker) == 1
        assert not of_trainer or said(rig, "train", of_trainer) == 1
        assert_all_arrives_once(rig, trainer, (worker, second))
        assert not any(said(rig, log, "Traceback") for log in ("serve", "train", "work"))
        assert {number for number, _ in rig.appended()} == {1, 2}
