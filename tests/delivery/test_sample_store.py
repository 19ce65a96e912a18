"""The trainer's sample store: what is found again after a kill or a power cut at any moment, and
after damage at any byte.
"""

import errno
import random
from contextlib import ExitStack

import pytest
from disk import PowerDisk, end_at_each_operation
from kit.executors import Beside
from kit.failing import failing
from kit.packets import Stores, entries, head_of, noise, numbered, packet_of
from receiving import trainer_of

from tmrl_like.base.files import disk
from tmrl_like.delivery import receiver, sample_store
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sample_store import read_file
from tmrl_like.wire import messages as m

EVERY_S = 0.25


@pytest.fixture
def power(tmp_path):
    with PowerDisk(tmp_path) as power:
        yield power


@pytest.fixture
def few(monkeypatch):
    """Have files below 2,000 bytes joined as soon as there are four."""
    monkeypatch.setattr(sample_store, "SMALL_BYTES", 2000)
    monkeypatch.setattr(sample_store, "SMALL_FILES", 4)


def put(store, *messages, now=0.0):
    store.write(head_of(*messages), messages, now)
    assert store.is_settled(now)


def put_each(store, *numbers, **how):
    """Put packets of three samples into the store by number (1: samples 1 to 3), each in its own
    file.
    """
    for number in numbers:
        put(store, noise(3 * number - 2), **how)


def numbers(store):
    return [(entry + 2) // 3 for entry in entries(store)]


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def samples_of(opened, *arguments):
    """Return the samples that a trainer finds in the store when it starts."""
    store = opened(*arguments)
    found = [int(sample.obs) for buffer in Receiver().replay(store.files()) for sample in buffer]
    store.close()
    return found


def written(opened, folder, messages):
    """Write packets of equal length; return their file, and where the first one begins in it."""
    store = opened()
    put(store, *messages)
    store.close()
    (path,) = folder.glob("*.log")
    return path, (path.stat().st_size - sum(map(len, messages))) // 2


# -- what is found again ---------------------------------------------------------------------------


@pytest.mark.fault(
    "disk", "a byte in a log is damaged", "it costs the packet that it is in, and one line says so"
)
def test_a_damaged_byte_costs_the_packet_it_is_in_and_no_other(opened, folder, caplog):
    messages = [noise(1), noise(4), noise(7)]
    path, start = written(opened, folder, messages)
    whole, size = path.read_bytes(), len(messages[0])
    assert list(map(bytes, read_file(path).messages)) == messages
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 0x55,)) + whole[at + 1 :])
        caplog.clear()
        hit = (at - start) // size
        found = [packet.first for packet, *_ in read_file(path).packets()]
        assert found == [entry for number, entry in enumerate((1, 4, 7)) if number != hit], at
        assert len(caplog.records) == (hit in (0, 1, 2)), at


@pytest.mark.fault(
    "disk", "a log is cut off at any byte", "what is whole in it is read, and one line says so"
)
def test_of_a_file_that_is_cut_off_what_is_whole_is_found(opened, folder, caplog):
    path, start = written(opened, folder, [noise(1), noise(4)])
    whole, size = path.read_bytes(), len(noise(1))
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        file = read_file(path)
        found = [packet.first for packet, *_ in file.packets()] if file else []
        assert found == [1, 4][: max(0, end - start) // size], end
    assert "which is left as it is" in caplog.text


@pytest.mark.parametrize("name", ["-1.log", "a.log", "1.packets"])
def test_a_file_whose_name_is_none_of_ours_is_left_as_it_is(opened, folder, name):
    folder.mkdir()
    (folder / name).write_bytes(b"anything")
    store = opened()
    assert not store
    put_each(store, 1)
    store.clear()
    assert files(folder) == [name]


def test_files_of_another_version_are_refused_and_not_taken_for_damage(opened, monkeypatch):
    version, own = m.WIRE_VERSION + 1, m.WIRE_VERSION
    with monkeypatch.context() as patch:
        patch.setattr(m, "WIRE_VERSION", version)
        store = opened()
        put_each(store, 1)
        store.close()
    store = opened()
    for read in (lambda: store.run, lambda: list(store.files())):
        with pytest.raises(m.WireVersionError, match=f"wire version {version} .* speaks {own}"):
            read()


# -- how many files there are ----------------------------------------------------------------------


def test_small_files_that_follow_each_other_become_one_and_large_ones_stay(opened, folder, few):
    store = opened()
    put_each(store, 1, 2)
    put(store, noise(7, size=3000))
    put_each(store, 4, 5, 6, 7)
    assert len(files(folder)) == 7
    put_each(store, 8)
    assert files(folder) == [f"{number:010d}.log" for number in (1, 2, 3, 4, 8)]
    assert numbers(store) == list(range(1, 9))


def test_a_file_that_cannot_be_read_is_not_joined_and_stops_nothing(opened, folder, few):
    store = opened()
    put_each(store, 1, 2, 3, 4)
    (folder / "0000000003.log").write_bytes(b"nothing")
    put_each(store, 5, 6, 7)
    assert numbers(store) == [1, 2, 4, 5, 6, 7]
    assert "0000000003.log" in files(folder)


def test_a_file_that_is_cut_off_costs_only_its_own_when_it_is_joined(opened, folder, few):
    """A power cut may leave the head of a file that was not synced, and little else."""
    store = opened()
    put_each(store, 1, 2)
    store.close()
    cut_off = folder / "0000000002.log"
    cut_off.write_bytes(cut_off.read_bytes()[: -len(noise(1))])
    store = opened()
    put_each(store, 3, 4, 5)
    assert len(files(folder)) == 2
    assert numbers(store) == [1, 3, 4, 5]


def test_joined_files_go_as_one_and_count_as_all_that_they_hold(opened, folder, few):
    store = opened()
    put(store, noise(1, size=3000))
    put_each(store, 2, 3, 4, 5)
    store.keep_samples = 12
    put_each(store, 6)
    assert numbers(store) == [2, 3, 4, 5, 6]
    assert len(files(folder)) == 2
    store.keep_samples = 4
    put_each(store, 7)
    assert numbers(store) == [6, 7]


def test_groups_are_due_one_interval_after_the_other_and_synced_or_not(opened, power, folder):
    for every_s, shortest_s in ((0.25, 0.25), (0.0, 0.01)):
        store = opened(every_s)
        power.begin()
        assert store.is_due(10.0)
        put_each(store, 1, now=10.0)
        assert not store.is_due(10.0 + shortest_s / 2)
        assert store.is_due(10.0 + EVERY_S)
        assert ("sync" in power.operations) == bool(every_s)
        store.close()


# -- kills and power cuts --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4, 13))
def test_files_are_joined_without_risk_for_what_is_on_the_disk(opened, power, folder, few, seed):
    store = opened(0.0)
    put_each(store, 1, 2, 3, 4)
    power.begin()  # all of them have reached the disk by now
    put_each(store, 5)
    assert len(files(folder)) == 2
    store.close()
    power.cut(random.Random(seed))
    assert numbers(opened())[:4] == [1, 2, 3, 4]


@pytest.mark.parametrize("is_cut", [False, True], ids=["killed", "power cut"])
def test_ended_at_any_operation_all_that_was_promised_is_found_once_and_in_order(
    tmp_path, monkeypatch, is_cut
):
    monkeypatch.setattr(sample_store, "SMALL_FILES", 3)

    def work(root, promise):
        with ExitStack() as stack:
            store = Stores(root / "log", stack)(EVERY_S)
            for number in range(1, 8):
                put(store, packet_of(number, numbered(number)))
                promise(number)

    def check(root, promised):
        with ExitStack() as stack:
            opened = Stores(root / "log", stack)
            found = samples_of(opened, EVERY_S)
            assert found == list(range(1, len(found) + 1))
            assert len(promised) <= len(found) <= len(promised) + 1
            with PowerDisk(root) as power:
                # what the next process has read survives another cut
                power.cut(random.Random(1))
            assert samples_of(opened, EVERY_S) == found

    assert end_at_each_operation(tmp_path, work, check, is_cut) > 40


# -- disks that take nothing, or take their time ---------------------------------------------------


def test_what_a_full_disk_does_not_take_is_written_when_there_is_room(opened, monkeypatch, caplog):
    store = opened(EVERY_S)
    put_each(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", failing(errno.ENOSPC))
        store.write(head_of(noise(4)), [noise(4)], 0.0)
        for now in (0.0, 1.9, 2.1, 3600.0):
            assert not store.is_settled(now)
            assert "No space left on device" in store.alarm
    assert not store.is_settled(3601.9)
    assert store.is_settled(3602.1)
    assert store.alarm == ""
    assert numbers(store) == [1, 2]
    assert [r.levelname for r in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("call", ["sync", "rename", "sync_folder"])
def test_what_could_not_be_synced_is_written_again_to_the_same_file_and_read_once(
    opened, power, folder, monkeypatch, call
):
    store = opened(EVERY_S)
    put(store, packet_of(1, numbered(1)))

    message = packet_of(2, numbered(2))
    with monkeypatch.context() as patch:
        patch.setattr(disk, call, failing(errno.EIO))
        store.write(head_of(message), [message], 10.0)
        assert not store.is_settled(10.0)
    assert store.is_settled(20.0)
    assert len(files(folder)) == 2
    store.close()
    power.cut(random.Random(1))
    assert samples_of(opened, EVERY_S) == [1, 2]


@pytest.fixture
def later(opened):
    later = Beside()
    yield later
    later.work()


@pytest.mark.fault(
    "disk",
    "a sync of the trainer's log takes seconds",
    "what was written is acknowledged after it; one line",
)
def test_a_disk_that_takes_seconds_is_one_line(opened, later, caplog):
    store = opened(EVERY_S, later)
    for begun_at in (0.0, 10.0, 20.0):
        store.write(head_of(noise(1)), [noise(1)], begun_at)
        for at, lines in ((0.9, begun_at > 0), (1.1, 1), (3.0, 1)):
            assert not store.is_settled(begun_at + at)
            assert caplog.text.count("is slow") == lines
        later.work()
        assert store.is_settled(begun_at + 3.5)


# -- with a receiver -------------------------------------------------------------------------------


def test_a_packet_is_acknowledged_as_received_at_once_and_as_stored_when_it_is_on_the_disk(
    opened, later, monkeypatch
):
    taker = trainer_of(opened(EVERY_S, later))
    assert taker.take(1, 0.0) == [(1, 0)]
    later.work()
    assert taker.take(2, 0.3) == [(2, 1)]
    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync", failing(errno.EIO))
        later.work()
        assert taker.write(0.4) == []
    assert (taker.metrics["log_fails"], taker.receiver.unstored_samples) == (1, 1)
    assert taker.write(2.5) == []
    later.work()
    assert taker.write(2.6) == [(2, 2)]
    assert (taker.metrics["log_fails"], taker.receiver.unstored_samples) == (0, 0)


@pytest.mark.parametrize("is_full", [False, True])
def test_what_the_memory_has_is_stored_at_the_end_however_early_it_is_if_the_disk_takes_it(
    opened, monkeypatch, is_full
):
    store = opened(EVERY_S)
    taker = trainer_of(store)
    assert taker.take(1, 0.0) == [(1, 1)]
    assert taker.take(2, 0.1) == [(2, 1)]
    if is_full:
        monkeypatch.setattr(disk, "write", failing(errno.ENOSPC))
    taker.receiver.finish()
    store.close()
    assert samples_of(opened) == ([1] if is_full else [1, 2])


def test_a_group_that_is_being_written_at_the_end_is_awaited_and_the_disk_not_called_slow(
    opened, later, monkeypatch, caplog
):
    store = opened(EVERY_S, later)
    taker = trainer_of(store)
    assert taker.take(1, 0.0) == [(1, 0)]
    assert taker.take(2, 0.1) == [(2, 0)]
    wait = store.wait

    def work_and_wait():
        later.work()
        return wait()

    monkeypatch.setattr(store, "wait", work_and_wait)
    taker.receiver.finish()
    store.close()
    assert samples_of(opened) == [1, 2]
    assert not caplog.records


def test_what_waits_is_stored_in_groups_of_a_moderate_size(opened, folder, monkeypatch):
    monkeypatch.setattr(receiver, "GROUP_BYTES", 10_000)
    store = opened(EVERY_S)
    taker = trainer_of(store)
    for entry in range(1, 11):
        taker.give(entry)
    taker.write(0.0)
    assert len(files(folder)) == 3
    taker.write(1.0)
    assert len(files(folder)) == 4
    store.close()
    assert samples_of(opened) == list(range(1, 11))
