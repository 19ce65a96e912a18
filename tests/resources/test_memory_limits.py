"""Memory is exhausted temporarily: while samples are decoded, while the server handles a message,
or in a worker's link.
"""

import sys

import psutil
import pytest
from chaos.chaos_rig import LedgerMemory, checkpoint_of, link_of, wait_for_checkpoint
from kit.waiting import until
from running import (
    assert_settled,
    drives_on,
    driving,
    limit_memory,
    rig_in,
    said,
)

from tmrl_like.delivery import receiver
from tmrl_like.errors import ShortageError
from tmrl_like.server.relay import Relay


@pytest.mark.fault(
    "resources",
    "the trainer has no memory for samples that arrive",
    "training goes on; they come again, once",
)
@pytest.mark.fault(
    "resources",
    "the server has no memory for a message",
    "it is dropped, and comes again; nobody loses a seat",
)
@pytest.mark.long  # dropped packets come again after five seconds
@pytest.mark.parametrize(
    ("owner", "name", "line"),
    [
        (receiver, "decode_body", "no memory is left for samples"),
        (Relay, "handle", "no memory is left for a message"),
    ],
)
def test_what_finds_no_memory_comes_again(tmp_path, monkeypatch, caplog, owner, name, line):
    times, take = [], getattr(owner, name)

    def short(*arguments, **options):
        times.append(len(times))
        if len(times) % 3 == 0:
            raise MemoryError
        return take(*arguments, **options)

    with driving(tmp_path) as (rig, server, trainer, _):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, short)
            until(lambda: len(times) > 60, "memory runs short twenty times")
        assert server.workers() == ["w1"]
        assert rig.trains(trainer)
    assert caplog.text.count(line) == 1


@pytest.mark.fault(
    "resources",
    "a worker's link has no memory left",
    "samples wait in the worker's files, and arrive once",
)
@pytest.mark.skipif(
    sys.platform != "linux", reason="limits of another process can be changed on Linux alone"
)
def test_samples_wait_for_a_link_that_has_no_memory(tmp_path, caplog):
    with driving(tmp_path, env={"ballast_bytes": 20_000}) as (rig, _, trainer, _):
        link = until(lambda: link_of(psutil.Process())).pid
        limit_memory(link, 1 << 20)
        until(lambda: "cannot read the samples" in caplog.text, "a line says so")
        drives_on(rig, 50)
        limit_memory(link, None)
        rig.wait_for_samples(trainer, 100, within_s=60.0)
    assert caplog.text.count("cannot read the samples") == 1


SHORT_OF_MEMORY = """
from pathlib import Path
from tmrl_like.delivery.outbox import Outbox

flag, pump = Path({flag!r}), Outbox.pump

def short(*arguments, **options):
    if flag.exists():
        flag.unlink()
        raise MemoryError
    return pump(*arguments, **options)

Outbox.pump = short
"""


@pytest.mark.fault(
    "resources",
    "a worker's link ends for want of memory",
    "the robot drives on; another link delivers all",
)
def test_a_link_that_ends_for_want_of_memory_is_followed_by_another(tmp_path, monkeypatch, caplog):
    flag = tmp_path / "short"
    (tmp_path / "sitecustomize.py").write_text(SHORT_OF_MEMORY.format(flag=str(flag)))
    monkeypatch.syspath_prepend(tmp_path)  # each Python process begins with it
    with driving(tmp_path) as (rig, _, trainer, worker):
        first = worker.link.process
        flag.touch()
        until(lambda: worker.link.process is not first, "another link")
        rig.wait_for_samples(trainer, within_s=60.0)
    assert caplog.text.count("the link failed: MemoryError()") == 1


@pytest.mark.fault(
    "resources",
    "the trainer's memory cannot grow",
    "training ends in one line that names memory_size; the next start has all samples, once",
)
def test_a_trainer_whose_memory_cannot_grow_ends_in_one_line_and_loses_nothing(
    tmp_path, monkeypatch
):
    append, there = LedgerMemory.append_buffer, 20

    def short(self, buffer):
        if len(self.rows()) > there and checkpoint_of(rig.place):
            raise MemoryError
        append(self, buffer)

    with rig_in(tmp_path) as rig:
        rig.server()
        rig.worker(1, link_process=False)
        with monkeypatch.context() as patch:
            patch.setattr(LedgerMemory, "append_buffer", short)
            with rig.place.make_trainer(checkpoint_path=rig.place.checkpoint) as trainer:
                with pytest.raises(
                    ShortageError, match=r"memory_size is 10,000,000\): make memory_size"
                ) as ended:
                    trainer.run()
                assert ended.value.__cause__ is None
        last = rig.trainer(checkpoint_path=rig.place.checkpoint)
        assert_settled(rig, last)


@pytest.mark.fault(
    "resources",
    "server or trainer may not grow any more (RLIMIT_AS)",
    "it goes on, or ends in one line and starts again; nothing is lost or doubled",
)
@pytest.mark.long
@pytest.mark.skipif(
    sys.platform != "linux", reason="limits of another process can be changed on Linux alone"
)
@pytest.mark.parametrize("part", ["server", "trainer"])
def test_a_part_that_may_not_grow_costs_no_sample(tmp_path, part):
    with rig_in(tmp_path) as rig:
        parts = {"server": rig.server_part(), "trainer": rig.trainer_part()}
        rig.worker(1, env={"ballast_bytes": 100_000})
        wait_for_checkpoint(rig.place)
        limited = parts[part]
        limit_memory(limited.pid, 1 << 20)
        if part == "server":
            parts["trainer"].freeze()  # arriving packets wait at the server
        drives_on(rig, 600)
        if part == "server":
            parts["trainer"].thaw()
        if limited.alive:
            limit_memory(limited.pid, None)
        else:
            log = {"server": "serve", "trainer": "train"}[part]
            assert said(rig, log, "no memory is left") == 1
            limited.restart()
        wait_for_checkpoint(rig.place)
        assert_settled(rig, rig.succeed(parts["trainer"], 100, within_s=60.0))
