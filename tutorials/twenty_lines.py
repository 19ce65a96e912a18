import sys
from statistics import mean

import tmrl_like.config.config_constants as cfg
from tmrl_like import RolloutWorker, TrainingOffline, partial, run_in_process
from tmrl_like.agents import SACAgent, SquashedGaussianActor
from tmrl_like.envs import GenericGymEnv
from tmrl_like.metrics.curves import plot_returns
from tmrl_like.replay import ReplayMemory

steps, env = int([*sys.argv, "6000"][1]), partial(GenericGymEnv, id="Pendulum-v1")
agent = partial(SACAgent, gamma=0.98, lr_actor=1e-3, lr_critic=1e-3, lr_entropy=1e-3)
schedule = {"epochs": 1, "rounds": 10, "steps": steps // 10, "start_training": 500}
parts = {"env_cls": env, "memory_cls": partial(ReplayMemory, batch_size=256), "training_agent_cls": agent}
training = partial(TrainingOffline, **parts, **schedule)
run_in_process(training, env, SquashedGaussianActor, test_episode_interval=2, trainer={"resume": "none", "sinks": []})
for name, file in ("before", None), ("after", cfg.MODEL_PATH_TRAINER):
    with RolloutWorker(env, SquashedGaussianActor, standalone=True, model_path=file) as worker:
        print(f"return {name}: {mean(worker.run_episode().return_ for _ in range(10)):.0f}")
plot_returns("pendulum.png", {"pendulum": [cfg.RUN_FOLDER]})
