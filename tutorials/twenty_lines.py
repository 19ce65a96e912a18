import sys

from tmrl_like import Experiment, partial
from tmrl_like.agents import SACAgent, SquashedGaussianActor
from tmrl_like.envs import GenericGymEnv
from tmrl_like.metrics.curves import plot_returns
from tmrl_like.replay import ReplayMemory

steps, env = int([*sys.argv, "6000"][1]), partial(GenericGymEnv, id="Pendulum-v1")
agent = partial(SACAgent, gamma=0.98, lr_actor=1e-3, lr_critic=1e-3, lr_entropy=1e-3)
parts = {"env": env, "actor": SquashedGaussianActor, "agent": agent, "memory": ReplayMemory}
schedule = {"epochs": 1, "steps": steps // 50, "start_training": 500, "resume": "none"}
keys = {"run_name": "pendulum", "trainer": schedule, "worker": {"test_episode_interval": 2}}
experiment = Experiment(**parts, **keys)
with experiment.make_in_process(sinks=[]) as trainer:
    trainer.run()
for name, policy in ("before", None), ("after", experiment.paths.trainer_model):
    with experiment.make_standalone(policy) as worker:
        print(f"return {name}: {sum(worker.run_episode().return_ for _ in range(10)) / 10:.0f}")
plot_returns("pendulum.png", [experiment.paths.folder])
