"""An experiment behind an engine of three nodes, on one machine."""

import threading

from engine_nodes import Nodes
from kit.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory
from kit.ports import free_port

from tmrl_like import Experiment, partial
from tmrl_like.engine.subjects import stream_name


def test_an_experiment_is_trained_behind_the_engine_that_it_names(tmp_path):
    with Nodes(tmp_path / "engine", 3, is_open=True) as nodes:
        experiment = Experiment(
            env=CountingEnv,
            actor=LinearActor,
            agent=CountingAgent,
            memory=partial(ListMemory, batch_size=4),
            run_name="behind",
            server={"port": free_port(), "engine": ",".join(nodes.urls)},
            trainer={"epochs": 1, "rounds": 1, "steps": 10},
        )
        with (
            experiment.make_server(),
            experiment.make_worker() as worker,
            experiment.make_trainer() as trainer,
        ):
            threading.Thread(target=worker.run).start()
            trainer.run()
            worker.stop()
        assert trainer.training.total_updates == 10
        stream = stream_name("behind")
        assert nodes.streams(nodes.leader(stream))[stream]["state"]["last_seq"] > 0
