from types import SimpleNamespace

import pytest

from tmrl_like.config.settings import ServerSection, Settings
from tmrl_like.engine.options import EngineOptions
from tmrl_like.errors import ConfigError
from tmrl_like.trainer.connecting import how_to_connect


def test_nodes_are_kept_in_one_form():
    nodes = ("nats://a.example", "b.example:4223", " 10.0.0.1 ", "tls://[::1]/", "[fe80::1]:1")
    expected = (
        "nats://a.example:4222",
        "nats://b.example:4223",
        "nats://10.0.0.1:4222",
        "tls://[::1]:4222",
        "tls://[fe80::1]:1",
    )
    assert EngineOptions(nodes=nodes, run="r").nodes == expected


WRONG = (
    "",
    "a",
    "tls://a,,b",
    "tcp://a",
    "tls://a b",
    "tls://a:0",
    "tls://a:65536",
    "tls://me@a",
    "tls://::1",
)


@pytest.mark.parametrize("engine", WRONG)
def test_what_is_no_address_is_refused_in_one_line(engine):
    with pytest.raises(
        ConfigError,
        match=r"^engine is '.*'; expected nats://host\[:port\] or tls://host\[:port\], with",
    ):
        ServerSection(engine=engine)


def test_an_experiment_names_the_engine_of_its_run():
    named = {"engine_credentials": "gpu.creds", "engine_ca": "ca.crt"}
    section = ServerSection(engine="tls://a, b:5", engine_max_bytes=1 << 30, **named)
    nodes = ("tls://a:4222", "tls://b:5")
    expected = EngineOptions(
        nodes=nodes, run="drone", max_bytes=1 << 30, credentials="gpu.creds", ca="ca.crt"
    )
    assert Settings(run_name="drone", server=section).engine == expected
    assert Settings().engine is None


def test_an_engine_keeps_more_than_nothing():
    with pytest.raises(ConfigError, match="engine_max_bytes is 5; expected 1048576 or more"):
        ServerSection(engine_max_bytes=5)


def test_an_engine_takes_one_trainer_and_no_several_ranks():
    connect = how_to_connect(EngineOptions(nodes=("nats://localhost",), run="r"), None)
    parts = SimpleNamespace(training=SimpleNamespace(ranks=SimpleNamespace(size=2)))
    with pytest.raises(ConfigError, match=r"passes samples to one trainer, and there are 2: start"):
        connect(parts)
