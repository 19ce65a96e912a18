import sys
from statistics import mean

from tmrl_like import Experiment, partial
from tmrl_like.agents import SACAgent, SquashedGaussianActor
from tmrl_like.envs import GenericGymEnv
from tmrl_like.metrics.curves import plot_returns
from tmrl_like.replay import ReplayMemory

steps, env = int([*sys.argv, "6000"][1]), partial(GenericGymEnv, id="Pendulum-v1")
agent = partial(SACAgent, gamma=0.98, lr_actor=1e-3, lr_critic=1e-3, lr_entropy=1e-3)
schedule = {
    "epochs": 1,
    "rounds": 10,
    "steps": steps // 10,
    "start_training": 500,
    "resume": "none",
}
parts = {
    "env": env,
    "actor": SquashedGaussianActor,
    "agent": agent,
    "memory": partial(ReplayMemory, batch_size=256),
}
experiment = Experiment(
    run_name="pendulum", **parts, trainer=schedule, worker={"test_episode_interval": 2}
)
with experiment.make_in_process(sinks=[]) as trainer:
    trainer.run()
for name, policy in ("before", None), ("after", experiment.paths.trainer_model):
    with experiment.make_standalone(policy) as worker:
        print(f"return {name}: {mean(worker.run_episode().return_ for _ in range(10)):.0f}")
plot_returns("pendulum.png", {"pendulum": [experiment.paths.folder]})
