"""Links that freeze, break and damage what they carry."""

import random
import time

import pytest
from chaos_rig import all_at_once, counts, log_uniform, wait_until

LINKS = 10


def linked(rig, links):
    """Links, the trainer at the first of them, and a worker at each of the others."""
    rig.server()
    proxies = [rig.proxy() for _ in range(links)]
    trainer = rig.trainer(port=proxies[0].port)
    return proxies, trainer, [rig.worker(number, port=proxies[number].port) for number in range(1, links)]


@pytest.mark.fault("network", "a worker's link freezes, then breaks", "no sample is lost or doubled")
@pytest.mark.fault("network", "the trainer's link freezes, then breaks", "no sample is lost or doubled")
@counts(short=4, zmq=200, tlspyo=100)
def test_links_that_freeze_and_then_break_cost_no_sample(rigs, seed, figure, transport, count):
    rig = rigs(transport)
    links = min(LINKS, count)
    longest_s = 30.0 if count > links else 2.0
    proxies, trainer, _ = linked(rig, links)
    rig.wait_for_samples(trainer)
    frozen_s = []

    def trouble(link):
        rng = random.Random(seed + link)
        for _ in range(count // links):
            time.sleep(log_uniform(rng, 0.1, 2.0))
            proxies[link].freeze()
            frozen_s.append(log_uniform(rng, 0.1, longest_s))
            time.sleep(frozen_s[-1])
            proxies[link].cut()
            proxies[link].thaw()

    all_at_once(*[lambda link=link: trouble(link) for link in range(links)])
    rig.wait_for_samples(trainer)
    found = rig.settle(trainer)
    figure(f"{len(frozen_s)} freezes of {min(frozen_s):.1f} to {max(frozen_s):.1f} s, then broken: {found}")
    assert found.exactly_once, str(found)


@pytest.mark.fault("network", "a link is silent", "both ends notice within 10 s")
@counts(short=1, zmq=10, tlspyo=5)
def test_a_silent_link_is_noticed_within_ten_seconds_by_worker_and_trainer(rigs, seed, figure, transport, count):
    rig, rng = rigs(transport), random.Random(seed)
    proxies, trainer, (worker,) = linked(rig, 2)
    peers = {"trainer": trainer.link.session, "worker": worker}
    took = {name: [] for name in peers}
    for _ in range(count):
        for peer in peers.values():
            assert peer.wait_connected(20)
        rig.wait_for_samples(trainer)
        time.sleep(rng.uniform(0.1, 1.5))
        for proxy in proxies:
            proxy.freeze()
        all_at_once(*[lambda name=name: took[name].append(until_noticed(peers[name])) for name in peers])
        for proxy in proxies:
            proxy.thaw()
    found = rig.settle(trainer)
    worst = ", ".join(f"{name} after {max(times):.1f} s at most" for name, times in took.items())
    figure(f"{count} links fell silent: noticed by the {worst}; {found}")
    assert found.exactly_once, str(found)


def until_noticed(peer):
    return wait_until(lambda: not peer.wait_connected(0.0), 10.0, "the silence is noticed")


@pytest.mark.fault("network", "bytes are changed on their way", "no sample is lost; the link heals")
@counts(short=3, zmq=40, tlspyo=20)
def test_corrupted_bytes_cost_no_sample_and_the_link_heals(rigs, seed, figure, transport, count):
    """`count`: rounds of noise on the links of two workers and the trainer, quiet in between."""
    rig, rng = rigs(transport), random.Random(seed)
    proxies, trainer, _ = linked(rig, 3)
    flips, healed = 0, []
    for _ in range(count):
        rig.wait_for_samples(trainer)
        for proxy in proxies:
            proxy.corrupt(log_uniform(rng, 500, 50_000), rng.randrange(1 << 30))
        time.sleep(log_uniform(rng, 0.3, 6.0 if count > 5 else 2.0))
        flips += sum(proxy.corrupted for proxy in proxies)
        for proxy in proxies:
            proxy.corrupt(float("inf"))
        quiet = time.monotonic()
        start = rig.arrived(trainer)
        wait_until(
            lambda n=start: set(trainer.training.memory.rows()[n:, 0].tolist()) == {1.0, 2.0},
            40,
            "every link heals",
        )
        healed.append(time.monotonic() - quiet)
    found = rig.settle(trainer)
    figure(f"{flips} flipped bits in {count} rounds: healed within {max(healed):.1f} s; {found}")
    assert flips >= count
    assert found.exactly_once, str(found)
