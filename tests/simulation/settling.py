"""The end of a simulation: faults stop, and all samples must arrive."""

ROUNDS = 1500


def settle(world):
    """Stop all faults and wait until everything has arrived. Then kill trainers that keep a store:
    their successors must find all samples there.
    """
    _heal(world)
    _round(world)
    for robot in world.robots:
        if robot.is_alive:
            robot.run(robot.append_to_all)  # reports lost samples, too
    _pass_until(
        world,
        lambda: not any(link.is_alive and link.orphan_until is not None for link in world.links),
    )
    _pass_until(world, lambda: not _unsettled(world))
    for training in world.trainings:
        if training.path is not None:
            training.note_death()
            for rank in training.ranks:
                rank.start_at = world.now
            training.start()
    world.auditor.settle()


def _heal(world):
    world.network.queue_messages = 1000
    for connection in world.network.connections:
        connection.held_until = [0.0, 0.0]
    for training in world.trainings:
        if training.power is not None:
            training.power.before = lambda number: None
    for worker in world.workers:
        worker.is_cut = False
    for process in world.processes:
        process.spare()


def _pass_until(world, is_done):
    for _ in range(ROUNDS):
        _round(world)
        if is_done():
            return
    raise AssertionError(f"it does not settle: {_unsettled(world)}")


def _round(world):
    """Let 0.3 s pass and give each part its turns."""
    world.now += 0.3
    for process in world.processes:
        process.start_at = min(process.start_at, world.now)
    world.start()
    for link in list(world.network.links):
        if link.may_dial:
            world.network.connect(link)
    for link in world.links:
        if link.is_alive:
            link.outbox.hasten()  # a break alone waits for the next sample
    for parts, turns in (
        (world.robots, ("refill",)),
        (world.links, ("turn",)),
        (world.servers, ("turn",)),
        (world.trainers, ("turn", "train", "turn", "store", "turn")),
        (world.servers, ("turn",)),
    ):
        for process in parts:
            for turn in turns:
                if process.is_alive:
                    process.run(getattr(process, turn))
        for connection in list(world.network.connections):
            world.network.deliver(connection, True, 1000)
            world.network.deliver(connection, False, 1000)


def _unsettled(world):
    """Return descriptions of all that has not settled yet."""
    found = [
        process.name
        for process in (*world.robots, *world.links, *world.trainers)
        if not process.is_alive
    ]
    for link in world.links:
        if link.is_alive and (kept := link.outbox.unacknowledged_samples()):
            found.append(f"{link.name} keeps {kept} samples")
        elif link.is_alive and link.role.pending():
            found.append(f"{link.name} waits for an answer")
    for robot in world.robots:
        if (
            robot.is_alive
            and robot.worker.is_in_lockstep
            and any(lane.life.holds_still for lane in robot.lanes)
        ):
            found.append(f"{robot.name} holds still")
    return found
