"""Helpers of the tests in this folder, which observe running parts."""

import contextlib
from contextlib import ExitStack

from chaos.chaos_rig import Rig
from kit.waiting import until


@contextlib.contextmanager
def rig_in(folder, transport="zmq"):
    with ExitStack() as stack:
        yield Rig(transport, folder / "rig", stack)


def assert_settled(rig, trainer):
    """Check that each produced sample is in the memory, once and in order."""
    found = rig.settle(trainer)
    assert found.exactly_once, str(found)


def drives_on(rig, steps):
    """Wait until the workers have produced more than `steps` further samples."""
    made = sum(rig.produced().values())
    until(lambda: sum(rig.produced().values()) > made + steps, "the worker drives on")


def trains_on(trainer, updates):
    """Wait until the trainer has made more than `updates` further updates."""
    wanted = trainer.training.total_updates + updates
    until(lambda: trainer.training.total_updates > wanted, "training goes on")


def limit_memory(pid, size_bytes):
    """Limit the memory of another process, on Linux; None: no more."""
    import resource

    limit = resource.RLIM_INFINITY if size_bytes is None else size_bytes
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def all_is_stored(worker):
    until(lambda: not worker.link.status.unacknowledged_samples, "all is stored")


@contextlib.contextmanager
def driving(folder, transport="zmq", **worker):
    """Run server, trainer and a worker; at the end, check that each sample has arrived once."""
    with rig_in(folder, transport) as rig:
        server, made, driven = rig.server(), rig.trainer(), rig.worker(1, **worker)
        rig.wait_for_samples(made)
        yield rig, server, made, driven
        assert_settled(rig, made)


def said(rig, part, text):
    """Return how many lines of a part's log contain a text."""
    return sum(text in line for line in (rig.place.folder / f"{part}.log").read_text().splitlines())


def wait_for_more(rig, samples=100):
    """Wait until workers in their own processes have appended more than `samples` further
    samples.
    """
    wanted = sum(rig.appended().values()) + samples
    until(lambda: sum(rig.appended().values()) > wanted, "the worker appends")


def assert_all_arrives_once(rig, trainer, workers):
    """Kill the trainer and the workers; check that the next trainer gets all that they appended,
    once.
    """
    last = rig.succeed(trainer, 100, within_s=60.0)
    for part in workers:
        part.kill()  # their links send the rest
    assert_settled(rig, last)
