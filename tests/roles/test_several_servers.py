"""A worker with two servers."""

import contextlib

import pytest
from house import House, take
from kit.episodes import of_episodes
from kit.fakes import CountingEnv

from tmrl_like.base.functional import partial
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.errors import ConfigError
from tmrl_like.networking import Trainer
from tmrl_like.session.ring import in_turn


@pytest.mark.fault(
    "network",
    "one of several servers is gone for good",
    "its workers take all that they have to the next one",
)
@pytest.mark.parametrize("transport", ["zmq", "tlspyo"])
def test_a_worker_whose_server_is_gone_takes_all_that_it_has_to_the_next_one(
    transport, until, caplog
):
    with contextlib.ExitStack() as stack:
        house = House(transport, stack)
        servers = [house.server(port=0) for _ in range(2)]  # both use one key folder
        addresses = [f"127.0.0.1:{server.address[1]}" for server in servers]
        first, second = (servers[addresses.index(address)] for address in in_turn(addresses, "arm"))
        house.port = second.address[1]
        trainer = house.trainer()
        worker = house.worker(
            partial(CountingEnv, step_s=0.001),
            name="arm",
            server_ip=addresses,
            link_process=transport == "zmq",
            outbox=OutboxOptions(max_age_s=0.0),
        )
        until(lambda: first.workers() == ["arm"])
        house.start(worker.run, nb_episodes=20)
        until(lambda: worker.condition().env_steps > 20)
        first.close()
        samples = take(trainer, lambda taken: len(taken.samples) >= 20 * 11).samples
        assert second.workers() == ["arm"]
        assert [tuple(sample.obs) for sample in samples] == of_episodes(200, 10)


def test_a_trainer_takes_several_servers_with_an_engine_only():
    with pytest.raises(
        ConfigError,
        match=r"the trainer dials one server, and server\.host names 2: .* \(server\.engine\)",
    ):
        Trainer(lambda: None, ["a", "b"], checkpoint_path=None)
