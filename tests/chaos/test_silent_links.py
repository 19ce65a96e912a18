"""A link falls silent."""

import random
import time

import pytest
from chaos_rig import all_at_once, counts, wait_until


@pytest.mark.fault("network", "a link is silent", "both ends notice within 10 s")
@counts(short=1, zmq=3, tlspyo=3)  # a link that is silent again within a minute is given more time
def test_a_silent_link_is_noticed_within_ten_seconds_by_worker_and_trainer(
    rigs, seed, figure, transport, count
):
    rig, rng = rigs(transport), random.Random(seed)
    rig.server()
    proxies = [rig.proxy(), rig.proxy()]
    trainer = rig.trainer(port=proxies[0].port)
    worker = rig.worker(1, port=proxies[1].port)
    peers = {"trainer": trainer.link.session, "worker": worker}
    took = {name: [] for name in peers}
    for _ in range(count):
        for peer in peers.values():
            assert peer.wait_connected(20)
        rig.wait_for_samples(trainer)
        time.sleep(rng.uniform(0.1, 1.5))
        for proxy in proxies:
            proxy.freeze()
        all_at_once(
            *[lambda name=name: took[name].append(until_noticed(peers[name])) for name in peers]
        )
        for proxy in proxies:
            proxy.thaw()
    found = rig.settle(trainer)
    worst = ", ".join(f"{name} after {max(times):.1f} s at most" for name, times in took.items())
    figure(f"{count} links fell silent: noticed by the {worst}; {found}")
    assert found.exactly_once, str(found)


def until_noticed(peer):
    return wait_until(lambda: not peer.wait_connected(0.0), 10.0, "the silence is noticed")
