"""An operator drives a worker that allows it, over the wire, and gives back by falling silent."""

import logging

import gymnasium
import msgspec
import numpy as np
import pytest
from house import IdleRole
from link_proxy import LinkProxy

import tmrl_like.config.config_constants as cfg
from tmrl_like.base import clocks
from tmrl_like.base.functional import partial
from tmrl_like.delivery.session import Session
from tmrl_like.envs.drivers import Keys
from tmrl_like.errors import ConfigError
from tmrl_like.networking import RolloutWorker
from tmrl_like.page.figures import FIELDS
from tmrl_like.page.watcher import Watcher
from tmrl_like.testing.fakes import CountingEnv, LinearActor
from tmrl_like.transport import KeyFolder, TransportOptions, addresses_of, connect, connect_to_one
from tmrl_like.types import ActionSource
from tmrl_like.wire import messages as m
from tmrl_like.worker.options import WorkerOptions

SLOW = partial(CountingEnv, step_s=0.002, episode_steps=10**6)


class Operator(IdleRole):
    """Says again what is held, until it is told to be silent."""

    says = None

    def on_tick(self, send, connected):
        if connected and self.says is not None:
            send(m.encode(msgspec.structs.replace(self.says, heard_s=clocks.up_s())))
        return 0.02


@pytest.fixture
def operator(house):
    """A page's side of the wire."""

    def connect():
        keys = KeyFolder(cfg.KEYS_FOLDER)
        where = addresses_of("127.0.0.1", house.port)
        link = connect_to_one(house.transport, where, "op", keys, TransportOptions())
        role = Operator()
        house._stack.callback(Session(link, "server", role, "watcher", "op").close, 0.0)
        return role

    return connect


def test_who_may_drives_from_the_page_and_the_policy_when_he_falls_silent(house, operator, until):
    house.server()
    trainer = house.trainer()
    keys = partial(Keys, keys={"w": [0.75]})
    worker = house.worker(SLOW, name="arm", takeover=keys, takeover_from_page=True)
    assert worker._state().may_be_driven
    page, samples = operator(), []
    house.start(worker.run)

    def driven_by(source):
        deliveries = trainer.link.retrieve(0.05)
        samples.extend(s for d in deliveries for s in d.buffer if not s.info.is_reset)
        trainer.link.confirm(deliveries)
        return samples and samples[-1].info.timing.source is source

    until(lambda: driven_by(ActionSource.POLICY))
    page.says = m.Drive("arm", 7, 0.0, ("w", "q"))
    until(lambda: driven_by(ActionSource.REMOTE))
    assert worker._state().driver == f"operator {'inproc' if house.transport == 'inproc' else 'local'}"
    page.says = m.Drive("arm", 7, 0.0, gives_back=True)
    until(lambda: driven_by(ActionSource.POLICY))
    page.says = m.Drive("arm", 7, 0.0)
    until(lambda: driven_by(ActionSource.REMOTE))
    page.says = None
    until(lambda: driven_by(ActionSource.POLICY))
    assert {float(s.act[0]) for s in samples if s.info.timing.source is ActionSource.REMOTE} == {0.75, 0.0}


class Noting(CountingEnv):
    """Keeps the actions."""

    def __init__(self):
        super().__init__(step_s=0.002, episode_steps=10**6)
        self.sent = []

    def step(self, action):
        self.sent.append(float(action[0]))
        return super().step(action)


@pytest.mark.fault("network", "an operator's link freezes while he holds keys", "they do not drive once it goes on")
def test_keys_that_a_frozen_link_held_back_do_not_drive(zmq_house, until, caplog):
    server = zmq_house.server()
    keys = partial(Keys, keys={"w": [0.75], "s": [-0.25]})
    worker = zmq_house.worker(Noting, name="arm", takeover=keys, takeover_from_page=True)
    zmq_house.start(worker.run)
    with LinkProxy(*server.address) as proxy:
        link = connect("zmq", "127.0.0.1", proxy.port, KeyFolder(cfg.KEYS_FOLDER))
        watcher = Watcher(link, "server", {}, (), may_drive=True)
        zmq_house._stack.callback(watcher.session.close, 0.0)

        def seen(field):
            watcher.want()
            return watcher.sight.workers[0][1][FIELDS.index(field)]

        def drives_by(key, action):
            watcher.drive(m.Drive("arm", 7, seen("up_s"), (key,)))
            return worker.env.sent[-1:] == [action] and seen("hand") == 7

        until(lambda: watcher.sight is not None and watcher.sight.workers)
        until(lambda: drives_by("w", 0.75))
        proxy.freeze()
        newest = seen("up_s")
        for _ in range(3):
            drives_by("w", 0.75)
        until(lambda: clocks.up_s() > newest + 2.0 and worker.env.sent[-1] != 0.75)  # 1.5 s count, 0.5 s drive
        silent_from = len(worker.env.sent)
        proxy.thaw()
        until(lambda: "operator local does not drive: his keys are older than 1.5 s" in caplog.text)
        until(lambda: drives_by("s", -0.25))
        assert 0.75 not in worker.env.sent[silent_from:]
        worker.stop()


def test_a_worker_that_does_not_allow_it_says_so_once(house, operator, until, caplog):
    caplog.set_level(logging.WARNING)
    house.server()
    worker = house.worker(SLOW, name="arm", takeover=Keys)
    page = operator()
    house.start(worker.run)
    page.says = m.Drive("arm", 7, 0.0, ("left",))
    until(lambda: "does not drive: worker.takeover_from_page is false" in caplog.text)
    steps = worker.loop.env_steps
    until(lambda: worker.loop.env_steps > steps + 100)
    assert caplog.text.count("does not drive") == 1
    assert worker.loop.takeover.steps == 0


class Choices(CountingEnv):
    """With an action that is no deflection."""

    def __init__(self):
        super().__init__()
        self.action_space = gymnasium.spaces.Discrete(3)
        self.default_action = np.int64(0)


def test_a_key_that_does_what_is_no_action_is_the_users_mistake_at_the_start():
    options = WorkerOptions(takeover_from_page=True)
    for keys, problem in ((None, "expected of each key the number"), ({"a": 7}, "what the key a does is 7")):
        takeover = None if keys is None else partial(Keys, keys=keys)
        with pytest.raises(ConfigError, match=problem):
            RolloutWorker(Choices, LinearActor, standalone=True, model_path=None, takeover=takeover, options=options)
