"""Parts of one process that come and go, over queues: there is nothing to kill, and as much to lose."""

import pytest
from chaos_rig import MANY_S, trouble, wait_until


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(6, id="inproc-short"),
        pytest.param(200, id="inproc-full", marks=[pytest.mark.chaos, pytest.mark.timeout(MANY_S)]),
    ],
)
def test_servers_and_trainers_that_are_replaced_cost_no_sample(rigs, seed, figure, count):
    rig = rigs("inproc")
    servers = [rig.server()]
    trainers = [rig.trainer(checkpoint_path=rig.place.checkpoint)]
    for number in (1, 2):
        rig.worker(number)
    rig.wait_for_samples(trainers[-1])

    def replace_server(_: object) -> None:
        servers[-1].close()
        servers.append(rig.server())

    def replace_trainer(_: object) -> None:
        trainers[-1].close()
        wait_until(lambda: not rig.trains(trainers[-1]), 10, "the trainer ends")
        trainers.append(rig.trainer(checkpoint_path=rig.place.checkpoint))

    actions = {"server": replace_server, "trainer": replace_trainer}
    trouble(actions, seed, count, pause_s=(0.02, 1.0))
    rig.wait_for_samples(trainers[-1])
    found = rig.settle(trainers[-1])
    figure(f"{len(servers) - 1} servers and {len(trainers) - 1} trainers replaced: {found}")
    assert found.exactly_once, str(found)
