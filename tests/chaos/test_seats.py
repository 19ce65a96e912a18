"""A killed worker or trainer soon leaves nothing behind at the server."""

import pytest
from chaos_rig import all_at_once, counts, wait_until

from tmrl_like.server.relay import Relay

FREE_WITHIN_S = 10.0


@pytest.fixture
def relays(monkeypatch):
    """The relays of all servers of a test."""
    made = []

    class Kept(Relay):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr("tmrl_like.server.server.Relay", Kept)
    return made


@pytest.mark.fault("processes", "whoever holds a seat dies", "the seat is free within 10 s")
@counts(short=1, zmq=5, tlspyo=3)
def test_a_dead_parts_seat_is_free_within_ten_seconds_and_another_takes_it(
    rigs, relays, figure, transport, count
):
    cases = [(rigs(transport), role) for role in ("worker", "trainer")]
    all_at_once(*[lambda case=case: figure(kill_who_sits(*case, relays, count)) for case in cases])


def kill_who_sits(rig, role, relays, count):
    """Kill parts of a role that no other rig has; return a line about their seats."""
    rig.server()
    part, freed, replaced = (
        {"worker": lambda: rig.worker_part(1), "trainer": rig.trainer_part}[role](),
        [],
        [],
    )
    for _ in range(count):
        wait_until(lambda: sitting(relays, role), 30, "the seat is taken")
        part.kill()
        freed.append(
            wait_until(lambda: not sitting(relays, role), FREE_WITHIN_S, "the seat is free")
        )
        part.start()
        wait_until(lambda: sitting(relays, role), 30, "the seat is taken")
        (dead,) = sitting(relays, role)
        part.restart()
        replaced.append(
            wait_until(
                lambda s=dead: sitting(relays, role) - {s}, FREE_WITHIN_S, "another takes the seat"
            )
        )
        assert part.alive
    return (
        f"{count} dead {role}s: seat free after {max(freed):.1f} s, taken over after "
        f"{max(replaced):.1f} s, at most"
    )


def sitting(relays, role):
    """Return the incarnations of a role's peers that have a seat."""
    seats = [relay.workers if role == "worker" else relay.ranks for relay in relays]
    return {seat.hello.incarnation for some in seats for seat in list(some.values())}


@pytest.mark.fault("processes", "a worker with child processes is killed", "none of them is left")
@counts(short=1, zmq=20, tlspyo=20)
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
        took.append(
            wait_until(lambda: not part.alive and not part.children(), 10, "every child is gone")
        )
        part.start()
    figure(f"{count} killed workers: all their processes gone after {max(took):.1f} s at most")
