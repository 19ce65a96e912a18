"""`tmrl-like engine forget`: a run's room is given back, and nothing that somebody needs is lost by mistake."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from engine_nodes import Nodes
from leaf_node import dial

from tmrl_like.cli import main
from tmrl_like.engine.subjects import SEATS, TrainerSeat, samples_of_part, samples_subject, stream_name


def test_a_run_is_forgotten_when_its_trainer_is_gone_and_nothing_waits(
    node: Nodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmrl_like.engine.status._LISTEN_S", 0.1)
    monkeypatch.setattr("tmrl_like.engine.status._REACH_S", 1.0)

    async def requested(*requests: tuple[str, object]) -> None:
        client = await dial(node.urls[0], node.authority.local_user("trainer"))
        for subject, body in requests:
            answer = await client.request(subject, msgspec.json.encode(body), timeout=5)
            assert b"error" not in answer.data
        await client.close()

    async def sampled() -> None:
        client = await dial(node.urls[0], node.authority.local_user("site"))
        await client.request(samples_subject("run", "local", "w"), b"x", timeout=5)
        await client.close()

    def forget(*more: str) -> tuple[int, str]:
        code = main(["engine", "forget", "run", "--keys-dir", str(node.keys.path), *more])
        said = capsys.readouterr()
        return code, said.out + said.err

    assert forget() == (2, "tmrl-like: error: no stream of a run 'run' is found; there are: none\n")
    stream = {"name": stream_name("run"), "subjects": [samples_of_part("run")], "storage": "file", "num_replicas": 1}
    seats = {"name": f"KV_{SEATS}", "subjects": [f"$KV.{SEATS}.>"], "storage": "file", "num_replicas": 1}
    made = ((f"$JS.API.STREAM.CREATE.{config['name']}", config) for config in (stream, seats))
    asyncio.run(requested(*made))
    asyncio.run(sampled())
    code, said = forget()
    assert (code, "1 message of this run wait" in said) == (2, True)

    async def seated() -> None:
        client = await dial(node.urls[0], node.authority.local_user("trainer"))
        await client.request(f"$KV.{SEATS}.run", msgspec.msgpack.encode(TrainerSeat("gpu", 7)), timeout=5)
        await client.close()

    asyncio.run(seated())
    code, said = forget("--lose-samples")
    assert (code, "the trainer gpu reads this run's streams: end it first" in said) == (2, True)
    asyncio.run(requested((f"$JS.API.STREAM.PURGE.KV_{SEATS}", {})))
    assert forget("--lose-samples") == (
        0,
        "nothing of run run is left at the hub; a leaf whose gateway does not run keeps what it has\n",
    )
    assert "no stream of a run 'run' is found" in forget()[1]
    node.kill(0)
    assert "no node answers" in forget()[1]
