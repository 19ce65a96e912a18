"""An experiment in a script: nothing is written twice, and server, worker and trainer are made from
it.
"""

import dataclasses
import sys
import threading
from pathlib import Path

import pytest
from kit.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory
from kit.ports import free_port

from tmrl_like import Experiment, RolloutWorker, partial
from tmrl_like.agents import SACAgent, SquashedGaussianActor
from tmrl_like.config.settings import TrainerSection
from tmrl_like.engine.subjects import stream_name
from tmrl_like.envs.drone import DroneEnv
from tmrl_like.errors import ConfigError
from tmrl_like.policies.policy_store import PolicyStore
from tmrl_like.replay import DropHistory, ReplayMemory, WithDemonstrations

sys.path.append(str(Path(__file__).parent / "engine"))
from engine_nodes import Nodes

DRONE = {
    "env": partial(DroneEnv, act_buf_len=3),
    "actor": partial(SquashedGaussianActor, hidden_sizes=(8,)),
    "agent": partial(SACAgent, gamma=0.5),
    "memory": partial(ReplayMemory, n_steps=2),
}
COUNTING = {
    "env": CountingEnv,
    "actor": LinearActor,
    "agent": CountingAgent,
    "memory": partial(ListMemory, batch_size=4),
}
SHORT = {"epochs": 1, "rounds": 2, "steps": 10, "device": "cpu"}


class Resetting(ListMemory):
    def __init__(self, reset_act_buf, **options):
        super().__init__(**options)


def halved(obs):
    return obs / 2


def test_memory_compressor_and_agent_are_told_what_the_other_parts_know():
    experiment = Experiment(**DRONE, obs_preprocessor=halved, crc_debug=True)
    known = {"act_buf_len": 3, "gamma": 0.5, "time_step_duration": 0.05, "n_steps": 2}
    assert experiment.memory_cls.keywords == known | {"obs_preprocessor": halved, "crc_debug": True}
    assert experiment.compressor == DropHistory(3)
    assert experiment.agent_cls.keywords == {"gamma": 0.5, "actor_cls": DRONE["actor"]}
    copy = dataclasses.replace(experiment, env=partial(DroneEnv, act_buf_len=4))
    assert copy.compressor == DropHistory(4)
    for page in (SHORT, TrainerSection(**SHORT)):
        training = Experiment(**DRONE, trainer=page).training()
        assert (training.epochs, training.memory.gamma) == (1, 0.5)
        assert isinstance(training.agent.get_actor(), SquashedGaussianActor)


def test_what_a_part_was_told_itself_stays_and_whole_samples_need_nothing_of_the_environment():
    own = DRONE | {"memory": partial(ReplayMemory, act_buf_len=2)}
    assert Experiment(**own).compressor == DropHistory(2)
    whole = Experiment(**DRONE, sample_compressor=None)
    assert whole.compressor is None
    assert "act_buf_len" not in whole.memory_cls.keywords
    assert Experiment(**DRONE, sample_compressor=halved).compressor is halved


def test_a_memory_in_a_memory_is_told_too():
    parts = DRONE | {"memory": partial(WithDemonstrations, memory=ReplayMemory)}
    assert Experiment(**parts).memory_cls.keywords["memory"].keywords["gamma"] == 0.5


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"trainer": {"epohcs": 3}}, "Experiment: trainer.epohcs: there is no such key; did you"),
        ({"worker": {"envs": 0}}, "Experiment: worker.envs is 0; expected 1 or more"),
        (
            {"memory": partial(Resetting, reset_act_buf=False)},
            "memory.reset_act_buf is False; expected the env",
        ),
        (
            {"memory": partial(Resetting, reset_act_buf=False), "sample_compressor": halved},
            "memory.reset_act_buf is False; expected the env",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(wrong, problem):
    with pytest.raises(ConfigError) as refused:
        Experiment(**DRONE | {"env": partial(DroneEnv, reset_act_buf=True)} | wrong)
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    "compressor", [{}, {"sample_compressor": None}, {"sample_compressor": halved}]
)
def test_a_memory_is_refused_whatever_compresses_its_samples(compressor):
    parts = DRONE | {"memory": lambda nb_steps, device: None}
    with pytest.raises(ConfigError, match="obs_preprocessor is given, but the memory takes no"):
        Experiment(**parts, **compressor, obs_preprocessor=halved)


def test_an_experiment_of_a_script_names_no_code_to_import():
    with pytest.raises(ConfigError, match="there is no code to import"):
        Experiment(**COUNTING).with_code()


@pytest.mark.parametrize("nodes", [0, 3], ids=["directly", "behind an engine"])
def test_server_worker_and_trainer_of_a_script_meet_and_keep_everything_in_the_runs_folder(
    own_home, tmp_path, nodes
):
    heard = []
    with Nodes(tmp_path / "engine", nodes, is_open=True) as engine:
        server = {"port": free_port(), "engine": ",".join(engine.urls) or None}
        experiment = Experiment(**COUNTING, run_name="mine", server=server, trainer=SHORT)
        with (
            experiment.make_server(),
            experiment.make_worker(
                env_cls=partial(CountingEnv, step_s=0.001), on_rollout=heard.append
            ) as worker,
            experiment.make_trainer(sinks=[]) as trainer,
        ):
            flight = threading.Thread(target=worker.run)
            flight.start()
            trainer.run()
            worker.stop()
            flight.join()
        assert (engine.leader(stream_name("mine")) is None) == (nodes == 0)
    assert trainer.training.total_updates == 20
    assert heard
    paths = experiment.paths
    assert paths.folder == own_home / ".tmrl_like" / "runs" / "mine"
    assert {"checkpoints", "metrics.jsonl", "policies", "run.json"} <= {
        p.name for p in paths.folder.iterdir()
    }
    assert PolicyStore(paths.policies).versions()
    with experiment.make_standalone(paths.trainer_model) as pilot:
        assert isinstance(pilot, RolloutWorker)
        assert pilot.run_episode().steps == 10
