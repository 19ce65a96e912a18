"""What a killed worker or trainer leaves behind: nothing, soon."""

import pytest
from chaos_rig import MANY_S, counts, wait_until


@pytest.mark.parametrize("role", ["worker", "trainer"])
@counts(short=1, zmq=5, tlspyo=3)
def test_a_dead_parts_seat_is_free_within_ten_seconds_and_another_takes_it(rigs, figure, role, transport, count):
    rig = rigs(transport)
    server = rig.server()
    make = {"worker": lambda: rig.worker_part(1), "trainer": rig.trainer_part}[role]
    part, freed, replaced = make(), [], []
    for _ in range(count):
        wait_until(lambda: sitting(server, role), 30, "the seat is taken")
        part.kill()
        freed.append(wait_until(lambda: not sitting(server, role), 10, "the seat is free"))
        part.start()
        wait_until(lambda: sitting(server, role), 30, "the seat is taken")
        (dead,) = sitting(server, role)
        part.restart()
        replaced.append(wait_until(lambda s=dead: sitting(server, role) - {s}, 10, "another takes the seat"))
        assert part.alive
    figure(f"{count} dead {role}s: seat free after {max(freed):.1f} s, taken over after {max(replaced):.1f} s, at most")


def sitting(server, role: str) -> set[int]:
    """Which processes of a role have a seat."""
    relay = server._relay
    seats = relay.workers if role == "worker" else [relay.trainer]
    return {seat.hello.session for seat in seats if seat is not None}


@pytest.mark.parametrize(
    ("transport", "count"),
    [
        pytest.param("tlspyo", 1, id="tlspyo-short"),
        *[
            pytest.param(name, 20, id=f"{name}-full", marks=[pytest.mark.chaos, pytest.mark.timeout(MANY_S)])
            for name in ("zmq", "tlspyo")
        ],
    ],
)
def test_a_killed_worker_leaves_no_process_behind(rigs, figure, transport, count):
    rig = rigs(transport)
    server = rig.server()
    part = rig.worker_part(1)
    took = []
    for number in range(count):
        wait_until(lambda n=number: (1, n + 1) in rig.produced(), 30, "the worker steps")
        if number == 0:
            wait_until(server.workers, 30, "the worker is connected")
        part.kill()
        took.append(wait_until(lambda: not part.left_behind(), 10, "every child is gone"))
        part.start()
    figure(f"{count} killed workers: all their processes gone after {max(took):.1f} s at most")
