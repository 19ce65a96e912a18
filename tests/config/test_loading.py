import math
import re
import sys

import numpy as np
import parts_for_tests as parts
import pytest
import yaml
from kit.fakes import CountingEnv
from kit.refusals import one_line

from tmrl_like.agents.in_numpy import NumpyGaussianActor
from tmrl_like.config.document import parse_document
from tmrl_like.config.loading import TOP_LEVEL, as_yaml, with_place
from tmrl_like.config.settings import ServerSection, WorkerSection
from tmrl_like.errors import ConfigError
from tmrl_like.experiment import load_experiment
from tmrl_like.replay import DropHistory

TEXT = """
run_name: r1
env: kit.fakes.CountingEnv
actor:
  class_path: kit.fakes.LinearActor
agent:
  class_path: parts_for_tests.Agent
  init_args:
    lr: 0.5
memory:
  class_path: kit.fakes.ListMemory
  init_args: {memory_size: 10}
sample_compressor:
  class_path: tmrl_like.replay.DropHistory
  init_args: {act_buf_len: 2}
obs_preprocessor: parts_for_tests.preprocess
server:
  port: 8000
trainer:
  epochs: .inf
"""


@pytest.fixture(autouse=True)
def module_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(TEXT)
    return path


def changed(file, old, new):
    assert old in TEXT
    file.write_text(TEXT.replace(old, new))
    return file


def test_a_file_becomes_the_objects_that_a_script_would_make(file):
    experiment = load_experiment(file)
    assert experiment.run_name == "r1"
    assert experiment.env is CountingEnv
    assert experiment.agent("o", "a").lr == 0.5
    assert experiment.memory(nb_steps=1, device="cpu").memory_size == 10
    assert experiment.sample_compressor == DropHistory(2)
    assert experiment.obs_preprocessor is parts.preprocess
    assert experiment.server == ServerSection(port=8000)
    assert experiment.trainer.epochs == math.inf
    assert experiment.worker == WorkerSection()


def test_without_an_agent_an_actor_that_ships_is_the_one_that_needs_no_torch(file):
    path = "tmrl_like.agents.SquashedGaussianActor"
    for written in (path, f"{{class_path: {path}, init_args: {{hidden_sizes: [8]}}}}"):
        changed(file, "actor:\n  class_path: kit.fakes.LinearActor\n", f"actor: {written}\n")
        actor = load_experiment(file, parts=["actor"]).actor
        assert getattr(actor, "func", actor) is NumpyGaussianActor
    assert list(actor.keywords["hidden_sizes"]) == [8]
    with one_line("has no such argument; did you mean hidden_sizes"):
        load_experiment(file, [(("actor", "hidden_size"), "8")], ["actor"])


def test_a_memory_that_ships_needs_no_compressor_beside_it(file):
    arguments = "{act_buf_len: 2, frame_stack: {3: 4, camera: 2}}"
    memory = f"memory: {{class_path: tmrl_like.replay.ReplayMemory, init_args: {arguments}}}\n"
    file.write_text(TEXT[: TEXT.index("memory:")] + memory)
    compressor = DropHistory(2, {3: 4, "camera": 2})
    assert load_experiment(file).compressor == compressor
    assert load_experiment(file, parts=["sample_compressor"]).compressor == compressor
    file.write_text(file.read_text() + "sample_compressor: null\n")
    assert load_experiment(file).compressor is None


ENV_AND_MEMORY = """
env: {class_path: tmrl_like.envs.drone.DroneEnv, init_args: {act_buf_len: 3}}
memory: {class_path: tmrl_like.replay.ReplayMemory, init_args: {n_steps: 2}}
agent: {class_path: tmrl_like.agents.SACAgent, init_args: {gamma: 0.5}}
actor: tmrl_like.agents.SquashedGaussianActor
"""
WORKERS_PARTS = ("env", "actor", "sample_compressor")
TRAINERS_PARTS = ("spaces", "agent", "memory")


def test_what_other_parts_know_the_memory_need_not_be_told(file):
    file.write_text(ENV_AND_MEMORY)
    assert load_experiment(file, parts=WORKERS_PARTS).compressor == DropHistory(3)
    assert load_experiment(file).as_data()["memory"]["init_args"]["act_buf_len"] == 3


def test_of_an_environment_that_is_elsewhere_the_memory_must_be_told(file):
    file.write_text(
        ENV_AND_MEMORY.replace("tmrl_like.envs.drone.DroneEnv", "not_on_this_machine.Env")
    )
    told = [(("memory", "act_buf_len"), "3"), (("memory", "frame_stack"), "0")]
    for given in (told[:0], told[:1]):
        with one_line(r"x.yaml:3: memory.init_args.\w+ is missing: it is the environment's"):
            load_experiment(file, given, TRAINERS_PARTS)
    assert load_experiment(file, told, TRAINERS_PARTS).memory_cls.keywords["act_buf_len"] == 3


def test_any_value_can_be_given_on_the_command_line(file):
    overrides = [
        (("server", "host"), "10.0.0.5"),
        (("agent", "lr"), "1e-3"),
        (("agent", "init_args", "depth"), "7"),
        (("memory", "memory_size"), "11"),
        (("seed",), "4"),
    ]
    experiment = load_experiment(file, overrides)
    agent = experiment.agent("o", "a")
    assert (agent.lr, agent.depth) == (0.001, 7)
    assert experiment.memory(nb_steps=1, device="cpu").memory_size == 11
    assert (experiment.server.host, experiment.seed) == ("10.0.0.5", 4)


def test_off_is_a_word_where_it_is_one_of_the_choices(file):
    agent = "  class_path: tmrl_like.agents.SACAgent\n  init_args:\n    acceleration: off"
    changed(file, "  class_path: parts_for_tests.Agent\n  init_args:\n    lr: 0.5", agent)
    assert load_experiment(file).agent.keywords["acceleration"] == "off"


@pytest.mark.parametrize("text", ["20261128", "1e3", "on", "con-1.2", "com10"])
def test_an_option_that_is_text_is_taken_as_it_was_typed(text, file):
    assert load_experiment(file, [(("run_name",), text)], ()).run_name == text
    prompt = f"{text}: press enter"
    keys = ("worker", "person", "reset_prompt")
    assert load_experiment(file, [(keys, prompt)], ()).worker.person.reset_prompt == prompt


@pytest.mark.parametrize("later", [(("server",), "{bind: 6}"), (("server", "bind"), "[6]")])
def test_what_was_typed_first_does_not_stand_for_a_later_value(later, file):
    with pytest.raises(ConfigError, match=r"server\.bind: expected text or none"):
        load_experiment(file, [(("server", "bind"), "5"), later], ())


def test_an_option_that_may_be_none_is_none_where_that_word_stands(file):
    given = ("seed", "server.bind", "server.keys_dir", "worker.cpu_affinity", "trainer.resume")
    settings = load_experiment(file, [(tuple(name.split(".")), "none") for name in given], ())
    assert settings.seed is settings.worker.cpu_affinity is None
    assert settings.server.bind is settings.server.keys_dir is None
    assert settings.trainer.resume == "none"
    for typed, bind in (("null", None), ("::", "::")):
        assert load_experiment(file, [(("server", "bind"), typed)], ()).server.bind == bind


def test_only_the_parts_that_were_asked_for_are_imported(file):
    changed(file, "parts_for_tests.Agent", "not_on_this_machine.Agent")
    assert load_experiment(file, parts=["env", "actor"]).env is CountingEnv
    with pytest.raises(ConfigError, match="there is no module 'not_on_this_machine'"):
        load_experiment(file)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("run_name: r1", "run_nam: r1", ":2: run_nam: there is no such key; did you mean run_n"),
        ("port: 8000", "port: many", ":18: server.port: expected a whole number, got 'many'"),
        ("  epochs: .inf", "  - epochs", ":19: trainer: expected keys with values, got ['epochs']"),
        *(
            ("run_name: r1", f"run_name: {name}", f":2: run_name is '{name}'; expected letters")
            for name in ("../r1", "CON", "nul", "COM1.2", "lpt9", "r1.")  # no folders on Windows
        ),
        ("run_name: r1", f"seed: {2**32}", ":2: seed is 4294967296; expected 0 to"),
        ("env: kit.fakes.CountingEnv", "", ": the key env is missing"),
        (
            "kit.fakes.CountingEnv",
            "parts_for_tests.Net",
            ":3: env.class_path: Net cannot be used here: it",
        ),
        (
            "  epochs: .inf",
            "  max_training_steps_per_env_step: .inf\nworker: {synchronous: true}",
            ":20: trainer.max_training_steps_per_env_step is inf; with worker.synch",
        ),
        (
            "port: 8000",
            "limits: {class_path: parts_for_tests.Net}",
            ":17: server: has a class_path",
        ),
        ("_len: 2", "_len: -2", ":13: sample_compressor: act_buf_len is -2; it counts actions, 0"),
    ],
)
def test_each_mistake_is_one_line_with_file_line_key_and_what_was_expected(file, old, new, problem):
    changed(file, old, new)
    with one_line("^" + re.escape(f"{file}{problem}")):
        load_experiment(file)


def test_a_file_that_cannot_be_read_is_one_line(file):
    with pytest.raises(
        ConfigError, match=r"y\.yaml: there is no such file; did you mean .*x\.yaml"
    ):
        load_experiment(file.with_name("y.yaml"))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_experiment(file.parent)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not a text file in UTF-8"):
        load_experiment(file)


def test_the_printed_configuration_is_complete_and_means_the_same(file, tmp_path):
    printed = as_yaml(load_experiment(file, [(("trainer", "rounds"), "9")]).as_data())
    content = yaml.safe_load(printed)
    assert tuple(content) == TOP_LEVEL
    assert content["agent"]["init_args"]["depth"] == 1
    assert content["trainer"]["rounds"] == 9
    again = tmp_path / "again.yaml"
    again.write_text(printed)
    assert as_yaml(load_experiment(again).as_data()) == printed


@pytest.mark.parametrize("value", ["12e4", "1E-3", "12", "on", "null", "~", "", "a: b", 12e4, 1e-9])
def test_printed_text_stays_text_and_a_number_a_number(value):
    again = parse_document(as_yaml({"a": value, "b": [value]}), "x").data
    assert again == {"a": value, "b": [value]}
    assert type(again["a"]) is type(value)


def test_numbers_of_numpy_are_printed_as_numbers():
    assert as_yaml({"a": np.int64(3), "b": np.float64(0.05)}) == "a: 3\nb: 0.05\n"


def test_the_printed_configuration_leaves_a_compressor_to_the_memory_as_the_file_does():
    experiment = load_experiment("drone")
    assert experiment.compressor is not None
    assert "sample_compressor" not in experiment.as_data()  # null: samples are sent whole


@pytest.mark.parametrize("name", ["drone", "pendulum", "robot", "trackmania", "carla"])
def test_the_experiments_that_ship_are_valid(name):
    if name == "carla":
        pytest.importorskip("carla.libcarla", reason="there is no wheel of carla for this Python")
    experiment = load_experiment(name)
    env = experiment.env()
    actor = experiment.actor(observation_space=env.observation_space, action_space=env.action_space)
    assert actor.act_(env.observation_space.sample()) in env.action_space
    env.close()


@pytest.mark.parametrize(
    ("section", "listens_on"),
    [
        ({}, "127.0.0.1"),
        ({"host": "::1"}, "::1"),
        ({"host": "127.0.0.2:7791"}, "127.0.0.2"),
        ({"host": "fd00::5"}, "::"),
        ({"host": "robot.example"}, "0.0.0.0"),
        ({"host": "10.0.0.5", "bind": "10.0.0.5"}, "10.0.0.5"),
    ],
)
def test_a_server_for_this_machine_listens_to_nobody_else(section, listens_on):
    assert ServerSection(**section).listens_on == listens_on


def test_a_mistake_on_the_command_line_is_not_taken_for_one_of_an_argument_command():
    document = parse_document("env: {init_args: {command: go}}", "x.yaml")
    document.override(("env", "init_args", "size"), "a")
    problem = "command line: env.init_args.size: expected a whole number, got 'a'"
    assert with_place(document, problem) == problem
    assert with_place(document, "command is 'go'") == "x.yaml:1: env.init_args.command is 'go'"
