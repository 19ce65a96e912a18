"""The process that sends is killed at any line: what was appended leaves once, in order, in the same packets."""

import gc

import numpy as np
import pytest
from both_ends import Ends
from kill_lines import kill_after

import tmrl_like.delivery
from tmrl_like.delivery import outbox, sample_log
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import decode_body
from tmrl_like.wire.records import unseal


class Trainer:
    """Looks at each packet that comes."""

    def __init__(self):
        self.packets = {}  # what is in them, by process and number

    def send(self, data):
        _, body = m.decode(data)
        for _, message in unseal(body):
            packet, content = m.decode(message)
            rows = [int(row.obs[0]) for row in decode_body(packet, content).samples()]
            assert self.packets.setdefault(packet.receipt, rows) == rows, "another packet of the same name"
        return True

    def acks(self):
        newest = {receipt.incarnation: receipt.sequence for receipt in sorted(self.packets)}
        return [m.Ack("w", incarnation, sequence, sequence) for incarnation, sequence in newest.items()]

    @property
    def rows(self):
        return [row for _, rows in sorted(self.packets.items()) for row in rows]


def append(ends, number):
    ends.append((None, np.full(200, number, np.float32), 0.0, False, False, {}))


def live(folder, lines, dies_alone):
    """Kill the link at this line of its work on a packet that lies in several files; whether it came to that."""
    ends, trainer = Ends(folder), Trainer()
    for number in range(3):
        append(ends, number)
        ends.begin_file()
    append(ends, 3)
    ends.seal()
    is_killed = kill_after(lines, lambda: ends.pump(trainer.send, True), tmrl_like.delivery)
    append(ends, 4)
    gc.collect()  # it may have taken a lock
    if dies_alone:
        ends.restart_reader()
    else:
        ends.kill()
        ends = Ends(folder, incarnation=2)
    ends.pump(trainer.send, True)
    for ack in trainer.acks():
        ends.on_ack(ack)
    ends.restart_reader()
    append(ends, 5)
    ends.seal()
    ends.pump(trainer.send, True)
    ends.close()
    assert trainer.rows == [0, 1, 2, 3, 4, 5], f"killed at line {lines}"
    return is_killed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # who is killed closes no files
@pytest.mark.parametrize("dies_alone", [True, False])
def test_a_packet_that_lies_in_several_files_is_the_same_after_a_kill_at_any_line(tmp_path, monkeypatch, dies_alone):
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 4096)
    monkeypatch.setattr(sample_log, "_ROWS", 4)
    monkeypatch.setattr(outbox, "_LOG_SEGMENT_BYTES", 1)  # so that what is stored is gone
    lines = 0
    while live(tmp_path / str(lines), lines, dies_alone):
        lines += 4
    assert lines > 300
