"""What befalls the parts of a simulation, and how often each fault is drawn."""


def _kill(world, processes, what):
    process = world.one(processes)
    if process is None:
        return
    world.count(what)
    if world.rng.random() < 0.5:
        process.die()
    else:
        process.dies_after = int(1.5 ** world.rng.uniform(0, 20))


def kill_server(world):
    server = world.one(world.servers.values())
    if server is not None:
        world.count("a server was killed")
        server.die()


def kill_env(world):
    _kill(world, world.envs, "an environment was killed")


def kill_link(world):
    _kill(world, world.links, "a link was killed")


def kill_trainer(world):
    _kill(world, world.trainers, "a trainer was killed")


def kill_worker(world):
    worker = world.rng.choice(world.workers)
    if worker.env.is_alive and worker.link.is_alive:
        world.count("a worker was killed")
        for process in world.rng.sample((worker.env, worker.link), 2):
            process.die()


def kill_in_write(world):
    process = world.one([*world.links, *world.trainers])
    if process is not None:
        process.dies_in_write = True


def leave(world):
    process = world.one([*world.envs, *world.trainers])
    if process is not None:
        world.count("a part left in good order")
        process.run(process.leave)


def cut(world):
    if world.network.connections:
        connection = world.rng.choice(world.network.connections)
        notices = [world.rng.choice((0.0, 0.0, world.rng.uniform(0.0, 8.0))) for _ in range(2)]
        if world.network.cut(connection, *notices):
            world.count("messages were lost with their connection")


def partition(world):
    if world.network.connections:
        connection = world.rng.choice(world.network.connections)
        until = world.now + world.rng.choice((0.5, 3.0, 12.0))
        directions = world.rng.choice(((0,), (1,), (0, 1)))
        for direction in directions:
            connection.held_until[direction] = until
        world.count("a connection was cut in two" if len(directions) == 2 else "one direction was held up")


def double(world):
    world.deliver(doubles=world.rng.choice((1, 1, 3)))


def freeze(world):
    process = world.one(world.processes)
    if process is not None:
        process.wait(world.rng.choice((0.3, 3.0, 9.0)))
        world.count("a process was stopped")


def fill_disk(world):
    world.rng.choice(world.machines).room_bytes = world.rng.randrange(3000)


def free_disk(world):
    for machine in world.machines:
        machine.room_bytes, machine.slow_s, machine.fails_to_sync = None, 0.0, False


def slow_disk(world):
    world.rng.choice(world.machines).slow_s = world.rng.choice((0.1, 3.0))


def fail_sync(world):
    world.rng.choice(world.machines).fails_to_sync = True


def cut_power(world):
    training = world.rng.choice(world.trainings)
    if training.power is not None and training.is_alive:
        training.cut_power_in(world.rng.randrange(10))


def cut_worker_power(world):
    """At once, or in the middle of what one of its processes does."""
    workers = [worker for worker in world.workers if worker.spools]
    if not workers:
        return
    worker = world.rng.choice(workers)
    process = world.one((worker.env, worker.link))
    if process is None or world.rng.random() < 0.5:
        worker.cut_power()
    else:
        worker.is_cut = True
        process.dies_after = int(1.5 ** world.rng.uniform(0, 20))


def jump_clock(world):
    world.rng.choice(world.machines).wall_jump_s += world.rng.choice((-3600.0, -1.0, 1.0, 3600.0))
    world.count("a clock jumped")


def let_clocks_jump(world):
    """Nothing else befalls it, and samples are to be younger than 2 s."""
    world.only(jump_clock, 0.05)
    world.options.max_age_s = 2.0
    for trainer in world.trainers:
        if trainer.is_alive:  # with the age that was drawn
            trainer.die()


def pass_time(world):
    """Nobody gets a turn for a while: a suspended machine."""
    world.now += world.rng.choice((3.0, 30.0, 300.0))
    world.count("time passed")


FAULTS = {
    kill_server: 0.25,
    kill_env: 0.3,
    kill_link: 0.6,
    kill_worker: 0.3,
    kill_trainer: 0.5,
    kill_in_write: 0.6,
    leave: 0.3,
    cut: 0.8,
    partition: 0.5,
    double: 1.0,
    freeze: 0.3,
    fill_disk: 0.3,
    free_disk: 0.6,
    slow_disk: 0.3,
    fail_sync: 1.0,
    cut_power: 0.6,
    cut_worker_power: 0.6,
    jump_clock: 0.3,
    pass_time: 0.3,
}
