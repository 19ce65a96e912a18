import pytest

from tmrl_like.config.experiment import ServerSection, Settings
from tmrl_like.engine.options import EngineOptions
from tmrl_like.errors import ConfigError


def test_nodes_are_kept_in_one_form():
    nodes = ("tls://a.example", "b.example:4223", " 10.0.0.1 ", "[::1]", "[fe80::1]:1")
    expected = (
        "tls://a.example:4222",
        "tls://b.example:4223",
        "tls://10.0.0.1:4222",
        "tls://[::1]:4222",
        "tls://[fe80::1]:1",
    )
    assert EngineOptions(nodes=nodes, run="r").nodes == expected


@pytest.mark.parametrize("engine", ["", "a,,b", "tcp://a", "a b", "a:0", "a:65536", "a:x", "me@a", "::1", "a/b"])
def test_what_is_no_address_is_refused_in_one_line(engine):
    with pytest.raises(ConfigError, match=r"^engine is '.*'; expected tls://host\[:port\], with commas$"):
        ServerSection(engine=engine)


def test_an_experiment_names_the_engine_of_its_run():
    section = ServerSection(engine="a, b:5", engine_max_bytes=1 << 30)
    expected = EngineOptions(nodes=("tls://a:4222", "tls://b:5"), run="drone", max_bytes=1 << 30)
    assert Settings(run_name="drone", server=section).engine == expected
    assert Settings().engine is None


def test_an_engine_keeps_more_than_nothing():
    with pytest.raises(ConfigError, match="engine_max_bytes is 5; expected 1048576 or more"):
        ServerSection(engine_max_bytes=5)
