"""The permissions of docs/guide/engine.md let a site and a trainer do what they need, and no
more.
"""

import asyncio
import json
from contextlib import asynccontextmanager

from nats.js.api import StreamConfig

from tmrl_like.engine.client import NodeClient
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

SITE_MAY_NOT_PUBLISH = (
    subject_of(RUN, POLICIES),  # a policy
    subject_of(RUN, SAMPLES, OTHER, "w1"),  # another site's samples
    subject_of(RUN, BEATS, OTHER, "w1"),  # another site's signs of life
    subject_of(RUN, GATEWAYS, OTHER),  # another site's state
    subject_of(RUN, ANSWERS, OTHER),  # acknowledgements for another site
    subject_of(RUN, ANSWERS, SITE),  # acknowledgements for itself
    f"{inbox('gpu')}.x",  # into the trainer's inbox
    f"$KV.{BUCKET}.{RUN}",  # a trainer's seat
    "$JS.API.STREAM.CREATE.x",  # a stream
    f"$JS.API.STREAM.UPDATE.{STREAM}",  # a change of the stream
    f"$JS.API.STREAM.PURGE.{STREAM}",  # a purge
    f"$JS.API.STREAM.DELETE.{STREAM}",  # the stream's end
    f"$JS.API.CONSUMER.CREATE.{STREAM}.x",  # a consumer
    f"$JS.API.STREAM.MSG.GET.{STREAM}",  # a question for a message
)
SITE_MAY_NOT_HEAR = (
    subject_of(RUN, SAMPLES, None, None),  # samples
    OWN_SAMPLES,  # its own samples
    ">",  # everything
    subject_of(RUN, ANSWERS, OTHER),  # another site's acknowledgements
    f"{inbox('gpu')}.>",  # another's inbox
    f"$KV.{BUCKET}.>",  # seats
)
TRAINER_MAY_NOT_PUBLISH = (
    OWN_SAMPLES,  # samples
    subject_of(RUN, BEATS, SITE, "w1"),  # signs of life
    subject_of(RUN, GATEWAYS, SITE),  # a gateway's state
    f"$JS.API.STREAM.DELETE.{STREAM}",  # the stream's end
    f"$JS.API.STREAM.UPDATE.{STREAM}",  # a change of the stream
)


@asynccontextmanager
async def connected(nodes, name):
    """Connect a user; yield the client and a list of the errors that its node tells."""
    errors = []

    async def note(error):
        errors.append(str(error).lower())

    client = NodeClient(str(nodes.user(name)))
    await client.connect(nodes.urls[0], inbox_prefix=inbox(name), error_cb=note)
    yield client, errors
    await client.close()


async def assert_refused(client, errors, publish, hear):
    """Try all of these subjects, and check that each is refused."""
    for subject in publish:
        await client.publish(subject, b"")
    for subject in hear:
        await client.subscribe(subject)
    missing = [f'publish to "{subject}"' for subject in publish]
    missing += [f'subscription to "{subject}"' for subject in hear]
    for _ in range(200):
        await client.flush()
        missing = [e for e in missing if not any(e.lower() in error for error in errors)]
        if not missing:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"allowed: {missing}")


def test_a_site_and_a_trainer_do_what_is_theirs_and_nothing_else(node):
    async def act():
        async with (
            connected(node, SITE) as (gateway, of_gateway),
            connected(node, "gpu") as (learner, of_learner),
        ):
            streams = learner.jetstream(timeout=60)
            await streams.add_stream(
                StreamConfig(STREAM, subjects=[subject_of(RUN, SAMPLES, None, None)])
            )
            heard = await gateway.subscribe(subject_of(RUN, POLICIES))
            await gateway.flush()
            await learner.publish(subject_of(RUN, POLICIES), b"weights")
            assert (await heard.next_msg(60)).data == b"weights"
            answer = await gateway.request(OWN_SAMPLES, b"x", timeout=60)
            assert json.loads(answer.data)["seq"] == 1
            assert of_gateway == of_learner == []
            await assert_refused(gateway, of_gateway, SITE_MAY_NOT_PUBLISH, SITE_MAY_NOT_HEAR)
            others_inbox = (f"{inbox(SITE)}.>",)
            await assert_refused(learner, of_learner, TRAINER_MAY_NOT_PUBLISH, others_inbox)
            assert (await streams.stream_info(STREAM)).state.messages == 1

    asyncio.run(act())
