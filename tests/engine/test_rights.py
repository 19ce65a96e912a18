"""The permissions of docs/guide/engine.md let a site and a trainer do what they need, and no
more.
"""

from __future__ import annotations

import asyncio
import json

import nats
from nats.js.api import StreamConfig

from tmrl_like.engine.subjects import (
    ANSWERS,
    BEATS,
    BUCKET,
    GATEWAYS,
    POLICIES,
    SAMPLES,
    inbox,
    stream_name,
    subject_of,
)

RUN, SITE, OTHER = "run", "arena", "lab"
STREAM = stream_name(RUN)
OWN_SAMPLES = subject_of(RUN, SAMPLES, SITE, "w1")
API = "$JS.API."

SITE_MAY_NOT_PUBLISH = {
    "a policy": subject_of(RUN, POLICIES),
    "another site's samples": subject_of(RUN, SAMPLES, OTHER, "w1"),
    "another site's signs of life": subject_of(RUN, BEATS, OTHER, "w1"),
    "another site's state": subject_of(RUN, GATEWAYS, OTHER),
    "acknowledgements for another site": subject_of(RUN, ANSWERS, OTHER),
    "acknowledgements for itself": subject_of(RUN, ANSWERS, SITE),
    "into the trainer's inbox": f"{inbox('gpu')}.x",
    "a trainer's seat": f"$KV.{BUCKET}.{RUN}",
    "a stream": f"{API}STREAM.CREATE.x",
    "a change of the stream": f"{API}STREAM.UPDATE.{STREAM}",
    "a purge": f"{API}STREAM.PURGE.{STREAM}",
    "the stream's end": f"{API}STREAM.DELETE.{STREAM}",
    "a consumer": f"{API}CONSUMER.CREATE.{STREAM}.x",
    "a question for a message": f"{API}STREAM.MSG.GET.{STREAM}",
}
SITE_MAY_NOT_HEAR = {
    "samples": subject_of(RUN, SAMPLES, None, None),
    "its own samples": OWN_SAMPLES,
    "everything": ">",
    "another site's acknowledgements": subject_of(RUN, ANSWERS, OTHER),
    "another's inbox": f"{inbox('gpu')}.>",
    "seats": f"$KV.{BUCKET}.>",
}
TRAINER_MAY_NOT_PUBLISH = {
    "samples": OWN_SAMPLES,
    "signs of life": subject_of(RUN, BEATS, SITE, "w1"),
    "a gateway's state": subject_of(RUN, GATEWAYS, SITE),
    "the stream's end": f"{API}STREAM.DELETE.{STREAM}",
    "a change of the stream": f"{API}STREAM.UPDATE.{STREAM}",
}


class Watched:
    """A client that records the errors of its node."""

    def __init__(self, nodes, name):
        self._url, self._name, self._credentials = nodes.urls[0], name, nodes.user(name)
        self.errors = []

    async def __aenter__(self):
        prefix, file = inbox(self._name), str(self._credentials)
        self.client = await nats.connect(
            self._url, user_credentials=file, inbox_prefix=prefix, error_cb=self._note
        )
        return self

    async def __aexit__(self, *_):
        await self.client.close()

    async def _note(self, error):
        self.errors.append(str(error).lower())

    async def refusals(self, publish, hear):
        """Try all of these subjects, and check that each is refused."""
        for subject in publish.values():
            await self.client.publish(subject, b"")
        for subject in hear.values():
            await self.client.subscribe(subject)
        expected = [f'publish to "{subject}"' for subject in publish.values()]
        expected += [f'subscription to "{subject}"' for subject in hear.values()]
        missing = expected
        for _ in range(200):
            await self.client.flush()
            missing = [e for e in expected if not any(e.lower() in error for error in self.errors)]
            if not missing:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"allowed: {missing}")


def test_a_site_and_a_trainer_do_what_is_theirs_and_nothing_else(node):
    async def act():
        async with Watched(node, SITE) as gateway, Watched(node, "gpu") as learner:
            streams = learner.client.jetstream(timeout=60)
            await streams.add_stream(
                StreamConfig(STREAM, subjects=[subject_of(RUN, SAMPLES, None, None)])
            )
            heard = await gateway.client.subscribe(subject_of(RUN, POLICIES))
            await gateway.client.flush()
            await learner.client.publish(subject_of(RUN, POLICIES), b"weights")
            assert (await heard.next_msg(60)).data == b"weights"
            assert (
                json.loads((await gateway.client.request(OWN_SAMPLES, b"x", timeout=60)).data)[
                    "seq"
                ]
                == 1
            )
            assert gateway.errors == learner.errors == []
            await gateway.refusals(SITE_MAY_NOT_PUBLISH, SITE_MAY_NOT_HEAR)
            await learner.refusals(TRAINER_MAY_NOT_PUBLISH, {"another's inbox": f"{inbox(SITE)}.>"})
            assert (await streams.stream_info(STREAM)).state.messages == 1

    asyncio.run(act())
