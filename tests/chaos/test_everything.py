"""All kinds of trouble on one pipeline, several at a time."""

import math
import time

import pytest
from chaos_rig import counts, log_uniform, trouble, wait_for_checkpoint

WORKERS = (1, 2, 3)


@pytest.mark.fault("processes", "all of it at once, at random", "no sample is lost, doubled or out of order")
@counts(short=0, zmq=200, tlspyo=100)
def test_everything_at_once_costs_no_sample(rigs, seed, figure, transport, count):
    """What is frozen, slow or damaged stays so until an action mends it; meanwhile parts are killed."""
    rig = rigs(transport)
    server = rig.server_part()
    links = [rig.proxy() for _ in range(1 + len(WORKERS))]
    trainer = rig.trainer_part(port=links[0].port)
    for number in WORKERS:
        assert rig.worker(number, port=links[number].port).wait_connected(20)
    wait_for_checkpoint(rig.place)

    def stop_trainer(rng):
        trainer.freeze()
        time.sleep(log_uniform(rng, 0.1, 6.0))
        trainer.thaw()

    def mend(_=None):
        for link in links:
            link.thaw()
            link.delay(0.0)
            link.corrupt(math.inf)
            link.limit(math.inf)

    trouble(
        {
            "kill the server": lambda _: server.restart(),
            "kill the trainer": lambda _: trainer.restart(),
            "stop the trainer": stop_trainer,
            "cut a link": lambda rng: rng.choice(links).cut(),
            "freeze a link": lambda rng: rng.choice(links).freeze(),
            "damage a link": lambda rng: rng.choice(links).corrupt(log_uniform(rng, 500, 50_000), rng.randrange(99)),
            "delay a link": lambda rng: rng.choice(links).delay(log_uniform(rng, 0.01, 1.0)),
            "limit a link": lambda rng: rng.choice(links).limit(log_uniform(rng, 1e4, 1e6)),
            "mend all": mend,
            "mend all again": mend,
        },
        seed,
        count,
        pause_s=(0.05, 5.0),
    )
    mend()
    if not trainer.alive:  # on a link that breaks every handshake it takes the server for another one, and ends
        trainer.start()
    wait_for_checkpoint(rig.place)
    found = rig.settle(rig.succeed(trainer))
    figure(f"{count} troubles of all kinds: {found}")
    assert found.exactly_once, str(found)
