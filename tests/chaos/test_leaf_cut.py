"""A site with a node of its own, a leaf, whose link to the other nodes is cut, or stands still, under load."""

import asyncio
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from chaos_rig import MANY_S, RUN, Rig, wait_until
from light_fleet import LightFleet
from link_proxy import LinkProxy
from numbered_samples import audit

from tmrl_like.engine.options import EngineOptions
from tmrl_like.engine.subjects import samples_subject

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from engine_nodes import Nodes
from leaf_node import LeafNode, dial, leaf_port

HZ = 10.0
many = [pytest.mark.chaos, pytest.mark.timeout(MANY_S)]


def confirmed_in_s(leaf: LeafNode, nodes: Nodes, seconds: float) -> list[float]:
    """How long the leaf takes to confirm a message of 2.5 kB, 50 a second. The trainer passes over them."""

    async def probe() -> list[float]:
        client, took = await dial(leaf.url, nodes.authority.local_user("site")), []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            started = time.perf_counter()
            await client.request(samples_subject(RUN, "local", "probe"), bytes(2500), timeout=30)
            took.append(time.perf_counter() - started)
            await asyncio.sleep(0.02)
        await client.close()
        return took

    return asyncio.run(probe())


@pytest.mark.fault(
    "network",
    "a site is cut off from its engine",
    "its workers' samples are confirmed on the site, and nothing is lost",
)
@pytest.mark.parametrize(
    ("workers", "cut_s", "how"),
    [
        pytest.param(4, 1.0, ("refuse", "allow")),
        pytest.param(16, 60.0, ("refuse", "allow"), marks=many),
        pytest.param(16, 60.0, ("freeze", "thaw"), marks=many),
    ],
)
def test_a_site_that_is_cut_off_keeps_confirming_and_loses_nothing(tmp_path, seed, figure, workers, cut_s, how):
    with ExitStack() as stack:
        hub = stack.enter_context(Nodes(tmp_path / "engine"))
        proxy = stack.enter_context(LinkProxy("127.0.0.1", leaf_port(hub)))
        leaf = stack.enter_context(LeafNode(tmp_path / "leaf", hub.authority.local_user("site"), proxy.port))
        rig = Rig("zmq", tmp_path / "rig", stack, hub.keys.path, EngineOptions(nodes=(leaf.url,), run=RUN))
        rig.server_part()
        rig.place = replace(rig.place, engine=EngineOptions(nodes=tuple(hub.urls), run=RUN))
        trainer = rig.trainer()
        fleet = stack.enter_context(LightFleet(workers, [rig.place.port], rig.place.keys, HZ))
        wait_until(lambda: fleet.is_stored([0] * workers), 60, "samples of all workers are stored")
        getattr(proxy, how[0])()
        time.sleep(0.5)  # what was on its way
        marks = fleet.marks()
        took = confirmed_in_s(leaf, hub, cut_s)
        pairs = list(zip(fleet.workers, marks, strict=True))
        wait_until(lambda: all(w.received > mark + 5 for w, mark in pairs), 60, "the site confirms by itself")
        confirmed = [worker.received for worker in fleet.workers]
        assert all(worker.stored <= mark for worker, mark in pairs)
        getattr(proxy, how[1])()
        back = time.monotonic()
        wait_until(lambda: fleet.is_stored(confirmed), 180, "what was confirmed meanwhile is stored")
        read_s = time.monotonic() - back
        fleet.stop()
        made = fleet.produced()
        wait_until(lambda: rig.arrived(trainer) >= sum(made.values()), 60, f"all {sum(made.values())} samples arrive")
        time.sleep(0.5)  # what would come twice
        found = audit(trainer.training.memory.rows(), made)
    confirmed_ms = f"{statistics.median(took) * 1e3:.2f} ms (median; {max(took) * 1e3:.0f} ms at most)"
    figure(f"{how[0]} for {cut_s:g} s, confirmed in {confirmed_ms}, all of it stored {read_s:.1f} s after: {found}")
    assert found.exactly_once, str(found)
