"""The chaos kit does what it says, with nothing of the pipeline in between."""

import math
import os
import random
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager

import numpy as np
import psutil
import pytest

from tmrl_like.errors import ConfigError
from tmrl_like.replay import ReplayMemory
from tmrl_like.replay.data_sets import write_data_set
from tmrl_like.testing.chaos import (
    Ledger,
    LedgerMemory,
    LinkProxy,
    NumberedEnv,
    Part,
    Schedule,
    audit,
    chaos_seed,
    log_uniform,
    produced,
)
from tmrl_like.types import Buffer


@contextmanager
def echo_server():
    """Sends back what it gets; closes when the other side closes."""

    def serve():
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(sock,), daemon=True).start()

    def answer(sock):
        with sock:
            try:
                while data := sock.recv(1 << 16):
                    sock.sendall(data)
            except OSError:
                pass

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()


@pytest.fixture
def proxy():
    with echo_server() as address, LinkProxy(*address) as proxy:
        yield proxy


@pytest.fixture
def connection(proxy):
    with socket.create_connection(proxy.address, timeout=60) as sock:
        yield sock


def ask(sock, data=b"hello"):
    sock.sendall(data)
    return receive(sock, len(data))


def receive(sock, size):
    data = b""
    while len(data) < size and (more := sock.recv(1 << 16)):
        data += more
    return data


def is_silent(sock, for_s=0.2):
    sock.settimeout(for_s)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(60)
    return False


def is_broken(sock):
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def test_a_proxy_passes_everything_on_unchanged(connection):
    data = os.urandom(5 << 20)
    answer = []
    reader = threading.Thread(target=lambda: answer.append(receive(connection, len(data))))
    reader.start()
    connection.sendall(data)
    reader.join(60)
    assert answer == [data]


def test_a_connection_ends_when_either_side_closes(proxy):
    first = socket.create_connection(proxy.address)
    assert ask(first) == b"hello"
    first.shutdown(socket.SHUT_WR)
    assert is_broken(first)
    first.close()


def test_a_cut_breaks_connections_and_lets_new_ones_in(proxy, connection):
    assert ask(connection) == b"hello"
    proxy.cut()
    assert is_broken(connection)
    with socket.create_connection(proxy.address, timeout=60) as again:
        assert ask(again) == b"hello"
    assert proxy.accepted == 2


def test_a_frozen_link_is_silent_and_goes_on_where_it_stopped(proxy, connection):
    assert ask(connection) == b"hello"
    proxy.freeze()
    connection.sendall(b"one")
    with socket.create_connection(proxy.address, timeout=60) as late:
        late.sendall(b"two")
        assert is_silent(connection)
        assert is_silent(late)
        proxy.thaw()
        assert receive(connection, 3) == b"one"
        assert receive(late, 3) == b"two"


def test_a_frozen_link_can_be_cut(proxy, connection):
    assert ask(connection) == b"hello"
    proxy.freeze()
    proxy.cut()
    assert is_broken(connection)


def test_a_refusing_proxy_refuses_until_it_allows(proxy, connection):
    assert ask(connection) == b"hello"
    proxy.refuse()
    assert is_broken(connection)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(proxy.address, timeout=60)
    used = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - used < 0.15, "it spins while it refuses"
    proxy.allow()
    with socket.create_connection(proxy.address, timeout=60) as again:
        assert ask(again) == b"hello"


def test_a_proxy_whose_target_is_away_breaks_connections(proxy):
    with LinkProxy("127.0.0.1", 1) as lost, socket.create_connection(lost.address, timeout=60) as sock:
        assert is_broken(sock)


def test_a_delay_is_paid_both_ways_and_ends(proxy, connection):
    proxy.delay(0.15)
    started = time.monotonic()
    assert ask(connection) == b"hello"
    assert time.monotonic() - started >= 0.3
    proxy.delay(0.0)
    took_s = []
    for _ in range(20):
        started = time.monotonic()
        assert ask(connection) == b"hello"
        took_s.append(time.monotonic() - started)
    assert min(took_s) < 0.15


def test_a_limited_link_takes_its_time(proxy, connection):
    proxy.limit(1e6)
    started = time.monotonic()
    assert len(ask(connection, bytes(400_000))) == 400_000
    assert time.monotonic() - started >= 0.35


def test_noise_flips_single_bits_about_as_often_as_asked_and_the_same_ones_again(proxy, connection):
    def noisy():
        proxy.corrupt(1000, seed=3)
        answer = b"".join(ask(connection, bytes(1000)) for _ in range(100))
        return answer, proxy.corrupted

    answer, flips = noisy()
    ones = sum(bin(byte).count("1") for byte in answer)
    assert flips == ones
    assert 130 < flips < 270  # of 200 kB
    assert noisy()[0] == answer
    proxy.corrupt(math.inf)
    assert ask(connection) == b"hello"


def test_a_closed_proxy_leaves_no_thread_and_frees_its_port():
    with LinkProxy("127.0.0.1", 1) as proxy:
        port = proxy.port
    proxy.close()
    assert not any(t.name == "tmrl-link-proxy" for t in threading.enumerate())
    socket.create_server(("127.0.0.1", port)).close()


# -- parts -------------------------------------------------------------------------------------------


def sleep_with_child(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    path.write_text(str(child.pid))
    time.sleep(600)


def tick(path):
    while True:
        with path.open("ab") as file:
            file.write(b".")
        time.sleep(0.005)


def size(path):
    return path.stat().st_size if path.exists() else 0


def test_a_part_is_killed_and_started_again(tmp_path, until):
    path = tmp_path / "ticks"
    with Part(tick, path) as part:
        until(lambda: size(path) > 3)
        pid = part.pid
        part.kill()
        assert not part.alive
        assert part.exit_code != 0
        before = size(path)
        part.start()
        until(lambda: size(path) > before + 3)
        assert part.pid != pid
        assert part.starts == 2
    assert not part.alive


def test_a_frozen_part_stands_still_and_goes_on(tmp_path, until):
    path = tmp_path / "ticks"
    with Part(tick, path) as part:
        until(lambda: size(path) > 3)
        part.freeze()
        time.sleep(0.05)
        before = size(path)
        time.sleep(0.2)
        assert size(path) == before
        part.thaw()
        until(lambda: size(path) > before)


def test_children_of_a_killed_part_are_named_and_ended_with_the_context(tmp_path, until):
    path = tmp_path / "pid"
    with Part(sleep_with_child, path) as part:
        until(lambda: size(path) > 0)
        child = int(path.read_text())
        assert part.rss_bytes() > 1 << 20
        part.kill()
        assert part.left_behind() == [child]
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_command_is_a_part_with_its_log(tmp_path, until):
    log = tmp_path / "log"
    code = "import os, time; print(os.environ['WORD'], flush=True); time.sleep(600)"
    with Part(["-c", code], environment={"WORD": "hello"}, log=log) as part:
        until(lambda: size(log))
        assert part.wait(0.01) is None
        part.restart()
        until(lambda: log.read_text().split() == ["hello", "hello"])


def test_a_part_does_not_outlive_the_process_that_made_it(tmp_path, until):
    path = tmp_path / "ticks"
    code = (
        f"import sys, os, time, pathlib; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "if __name__ == '__main__':\n"
        "    from test_chaos_kit import tick, Part\n"
        f"    part = Part(tick, pathlib.Path({str(path)!r})); time.sleep(600)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    with Part([str(script)]) as owner:
        until(lambda: size(path) > 3, 60)
        owner.kill()
        settled = []
        until(lambda: settled.append(size(path)) or time.sleep(0.1) or size(path) == settled[-1])


# -- ledger ------------------------------------------------------------------------------------------


def rows(*numbers, worker=1, incarnation=1):
    return np.array([[worker, incarnation, number] for number in numbers], np.float32)


@pytest.mark.parametrize(
    ("numbers", "count", "expected"),
    [
        ((0, 1, 2), 3, (3, 3, 0, 0, 0, 0)),
        ((0, 2), 4, (4, 2, 2, 1, 0, 0)),
        ((0, 1, 1, 2), 3, (3, 3, 0, 0, 1, 0)),
        ((0, 2, 1), 3, (3, 3, 0, 0, 0, 1)),
        ((), 2, (2, 0, 2, 2, 0, 0)),
        ((0, 1, 2), 2, (3, 3, 0, 0, 0, 0)),
    ],
)
def test_an_audit_finds_what_is_lost_doubled_and_out_of_order(numbers, count, expected):
    found = audit(rows(*numbers).reshape(-1, 3), {(1, 1): count})
    assert (found.produced, found.held, found.lost, found.lost_at_end, found.doubled, found.out_of_order) == expected
    assert found.exactly_once == (expected[2:] == (0, 0, 0, 0))


def test_an_audit_keeps_workers_and_incarnations_apart_and_says_what_is_wrong():
    held = np.concatenate([rows(0, 1), rows(0, 5, 6, worker=2), rows(0, 0, incarnation=2)])
    found = audit(held, {(1, 1): 2, (2, 1): 7, (1, 2): 1})
    assert str(found) == (
        "10 produced, 4 lost (0 of them last), 1 doubled, 0 out of order; worker 1, incarnation 2: doubled 0; "
        "worker 2, incarnation 1: lost 1-4"
    )


def test_a_numbered_environment_counts_every_sample_across_incarnations(tmp_path):
    held = []
    for _ in range(2):
        env = NumberedEnv(tmp_path, worker=3, period_s=0.0, episode_steps=4)
        for _ in range(2):
            held.append(env.reset()[0])
            held += [env.step(env.action_space.sample())[0] for _ in range(4)]
        env.close()
    assert produced(tmp_path) == {(3, 1): 10, (3, 2): 10}
    assert audit(np.array(held), produced(tmp_path)).exactly_once


def test_a_numbered_environment_keeps_its_period(tmp_path):
    env = NumberedEnv(tmp_path, period_s=0.01)
    env.reset()
    started = time.perf_counter()
    for _ in range(20):
        env.step(None)
    assert time.perf_counter() - started >= 0.19
    env.close()


class LedgerReplayMemory(Ledger, ReplayMemory):
    pass


@pytest.mark.parametrize("memory_cls", [LedgerMemory, LedgerReplayMemory])
def test_a_ledger_records_what_a_memory_is_given_and_keeps_it_when_the_memory_drops_it(memory_cls, tmp_path):
    env = NumberedEnv(tmp_path, period_s=0.0, ballast_bytes=10)
    memory = memory_cls(memory_size=5, batch_size=2)
    act = env.action_space.sample()
    samples = [(act, env.reset()[0], 0.0, False, False, {})]
    samples += [(act, *env.step(act)[:4], {}) for _ in range(11)]
    memory.append(Buffer(samples[:6], "a"))
    memory.append(Buffer(samples[6:], "a"))
    assert len(memory) < 6
    assert audit(memory.rows(), produced(tmp_path)).exactly_once
    memory.append(Buffer(samples[6:7], "a"))
    assert audit(memory.rows(), produced(tmp_path)).doubled == 1
    env.close()


@pytest.mark.parametrize("memory_cls", [LedgerMemory, LedgerReplayMemory])
def test_the_ledger_of_a_restarted_trainer_holds_what_its_log_does(memory_cls, tmp_path):
    env = NumberedEnv(tmp_path / "tally", period_s=0.0)
    act = env.action_space.sample()
    samples = [(act, env.reset()[0], 0.0, False, False, {})]
    samples += [(act, *env.step(act)[:4], {}) for _ in range(11)]
    write_data_set(tmp_path / "log", [Buffer(samples[:6], "a"), Buffer(samples[6:], "a")])
    memory = memory_cls(memory_size=5, batch_size=2, dataset_path=tmp_path / "log")
    assert audit(memory.rows(), produced(tmp_path / "tally")).exactly_once
    env.close()


# -- schedules ---------------------------------------------------------------------------------------


def test_a_schedule_is_the_same_with_the_same_seed_and_bounded():
    def journal(seed):
        drawn = []
        actions = {"a": lambda rng: drawn.append(rng.random()), "b": lambda rng: drawn.append(0)}
        schedule = Schedule(actions, seed, count=20, pause_s=(1e-4, 1e-3))
        assert schedule.run() == 20
        assert f"SEED={seed}" in str(schedule)
        return drawn, [name for _, name in schedule.journal]

    assert journal(1) == journal(1)
    assert journal(1) != journal(2)
    late = Schedule({"a": lambda rng: None}, 1, count=1000, pause_s=(0.01, 0.02), within_s=0.1)
    assert late.run() < 11


def test_the_seed_can_be_asked_for(monkeypatch):
    assert chaos_seed() != chaos_seed()
    monkeypatch.setenv("TMRL_LIKE_CHAOS_SEED", "7")
    assert chaos_seed() == 7
    monkeypatch.setenv("TMRL_LIKE_CHAOS_SEED", "seven")
    with pytest.raises(ConfigError, match="TMRL_LIKE_CHAOS_SEED is 'seven'"):
        chaos_seed()


def test_log_uniform_draws_as_many_small_as_large():
    rng = random.Random(1)
    numbers = [log_uniform(rng, 0.1, 10) for _ in range(2000)]
    assert 0.1 <= min(numbers) <= max(numbers) <= 10
    assert 900 < sum(number < 1 for number in numbers) < 1100
