"""How a simulation ends: faults stop, and all must arrive."""

from simulated_faults import free_disk

ROUNDS = 1500


def settle(world):
    """Faults stop; then all must arrive. Trainers that keep a log are killed, and must have it all from there."""
    _heal(world)
    _round(world)
    for env in world.envs:
        if env.is_alive:
            env.run(env.append_to_all)  # so that it says what it had no room for
    _pass_until(world, lambda: not any(link.is_alive and link.orphan_until is not None for link in world.links))
    _pass_until(world, lambda: not _unsettled(world))
    for training in world.trainings:
        if training.path is not None:
            training.note_death()
            for rank in training.ranks:
                rank.start_at = world.now
            training.start()
    set_aside = set()
    for link in world.links:
        for box in link.outboxes:
            turns = {backlog.incarnation for backlog in box._sender._turns}
            set_aside |= {(link.worker.name, i) for i in box._sender._backlogs if i not in turns}
    world.auditor.settle(set_aside, [lane.life for env in world.envs for lane in env.lanes])


def _heal(world):
    free_disk(world)
    world.network.queue_messages = 1000
    for machine in world.machines:
        machine.wall_jump_s = 0.0
    for connection in world.network.connections:
        connection.held_until = [0.0, 0.0]
    for training in world.trainings:
        if training.power is not None:
            training.power.before = lambda number: None
    for worker in world.workers:
        worker.is_cut = False
    for process in world.processes:
        process.dies_after, process.dies_in_write = None, False
        process.frozen_until = min(process.frozen_until, world.now)


def _pass_until(world, is_done):
    for _ in range(ROUNDS):
        _round(world)
        if is_done():
            return
    raise AssertionError(f"it does not settle: {_unsettled(world)}")


def _round(world):
    """Each part takes its turns; 0.3 s pass."""
    world.now += 0.3
    for process in world.processes:
        process.start_at = min(process.start_at, world.now)
    world.start()
    for link in list(world.network.links):
        if link.may_dial:
            world.network.connect(link)
    for env in world.envs:
        if env.is_alive:
            env.run(env.refill)
            env.run(env.seal)
    for parts, turns in (
        (world.links, ("turn",)),
        (world.servers.values(), ("turn",)),
        (world.trainers, ("turn", "train", "turn")),
        (world.servers.values(), ("turn",)),
    ):
        for process in parts:
            for turn in turns:
                if process.is_alive:
                    process.run(getattr(process, turn))
        for connection in list(world.network.connections):
            world.network.deliver(connection, True, 1000)
            world.network.deliver(connection, False, 1000)


def _unsettled(world):
    """What is not as it should be."""
    found = [process.name for process in (*world.envs, *world.links, *world.trainers) if not process.is_alive]
    for link in world.links:
        if link.is_alive:
            found += [f"{link.name} keeps {box.unacknowledged_samples()}" for box in link.outboxes if _keeps(box)]
    return found


def _keeps(box):
    """Whether anything waits that a trainer would take."""
    sender = box._sender
    return box._reader.has_unread or any(backlog.samples for backlog in sender._turns) or box.pending()
