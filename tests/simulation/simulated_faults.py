"""Faults that hit the parts of a simulation; `world.FAULTS` gives their frequencies."""

from tmrl_like.wire import messages as m

TINY_TURNS = 20  # a process is killed after between 1 and 1.5 to the power of this many lines


def _kill(world, processes, what):
    """Kill one of several processes, at once or at some line of its next turn."""
    process = world.one(processes)
    if process is None:
        return
    world.count(what)
    if world.rng.random() < 0.5:
        process.die()
    else:
        process.dies_after = int(1.5 ** world.rng.uniform(0, TINY_TURNS))


def kill_server(world):
    server = world.one(world.servers)
    if server is not None:
        world.count("a server was killed")
        server.die()


def kill_robot(world):
    _kill(world, world.robots, "a robot was killed")


def kill_link(world):
    _kill(world, world.links, "a link was killed")


def kill_trainer(world):
    _kill(world, world.trainers, "a trainer was killed")


def kill_worker(world):
    """Kill both processes of a worker."""
    worker = world.rng.choice(world.workers)
    if worker.robot.is_alive and worker.link.is_alive:
        world.count("a worker was killed")
        for process in world.rng.sample((worker.robot, worker.link), 2):
            process.die()


def leave(world):
    process = world.one([*world.robots, *world.trainers])
    if process is not None:
        world.count("a part left in good order")
        process.run(process.leave)


def cut_connection(world):
    """Cut a connection; each end notices it at once or some seconds later."""
    if world.network.connections:
        connection = world.rng.choice(world.network.connections)
        notices = [world.rng.choice((0.0, 0.0, world.rng.uniform(0.0, 8.0))) for _ in range(2)]
        if world.network.cut(connection, *notices):
            world.count("messages were lost with their connection")


def hold_up(world):
    """Hold a connection up in one direction or both; later everything arrives."""
    if world.network.connections:
        connection = world.rng.choice(world.network.connections)
        until = world.now + world.rng.choice((0.5, 3.0, 12.0))
        directions = world.rng.choice(((0,), (1,), (0, 1)))
        for direction in directions:
            connection.held_until[direction] = until
        world.count(
            "a connection was cut in two" if len(directions) == 2 else "one direction was held up"
        )


def lose(world):
    """Lose a packet or an answer, as a server with full queues does (no transport does)."""
    queues = [
        queue
        for connection in world.network.connections
        for queue in (connection.up, connection.down)
    ]
    found = [
        (queue, data)
        for queue in queues
        for data in queue
        if isinstance(m.decode(data)[0], m.SamplePacket | m.Ack)
    ]
    if found:
        queue, data = world.rng.choice(found)
        queue.remove(data)
        world.count("a message was lost")


def double(world):
    world.deliver(doubles=world.rng.choice((1, 1, 3)))


def freeze(world):
    process = world.one(world.processes)
    if process is not None:
        process.wait(world.rng.choice((0.3, 3.0, 9.0)))
        world.count("a process was stopped")


def cut_trainer_power(world):
    """Cut the power of a trainer's machine before one of its next writes, renames or syncs."""
    training = world.rng.choice(world.trainings)
    if training.power is not None and training.is_alive:
        training.cut_power_in(world.rng.randrange(10))


def cut_worker_power(world):
    """Cut the power of a worker's machine, at once or in the middle of a process's turn."""
    workers = [worker for worker in world.workers if worker.spools]
    if not workers:
        return
    worker = world.rng.choice(workers)
    process = world.one((worker.robot, worker.link))
    if process is None or world.rng.random() < 0.5:
        worker.cut_power()
    else:
        worker.is_cut = True
        process.dies_after = int(1.5 ** world.rng.uniform(0, TINY_TURNS))


def pass_time(world):
    """Let time pass without any turns, as on a suspended machine."""
    world.now += world.rng.choice((3.0, 30.0, 300.0))
    world.count("time passed")


# -- changes of a whole world: no other fault hits it ----------------------------------------------


def lose_last_words(world):
    """Lose answers about entries that are stored and trained on, while all workers are in
    lockstep.
    """

    def is_last_word(data):
        message, _ = m.decode(data)
        return isinstance(message, m.Ack) and message.trained >= message.stored > 0

    def lose_some(world):
        for connection in world.network.connections:
            for queue in (connection.up, connection.down):
                for data in filter(is_last_word, [*queue]):
                    queue.remove(data)
                    world.count("a message was lost")

    for worker in world.workers:
        worker.is_in_lockstep = True
    world.only(lose_some, 0.2)


def kill_groups(world):
    """Silence all trainers of a group, kill them with their unsent messages, and restart them in
    another number.
    """

    def silence_or_kill(world):
        peers = [rank.peer for rank in world.trainers if rank.session is not None]
        own = [connection for connection in world.network.connections if connection.link in peers]
        if any(connection.held_until[0] > world.now for connection in own):
            kill_trainer(world)
        for connection in own:
            connection.held_until[0] = world.now + 300.0

    for training in world.trainings:
        training.sizes = (1, 2, 3)
    world.only(silence_or_kill, 0.02)
