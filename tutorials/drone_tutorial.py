"""The library tutorial: everything by hand, in one script.

A drone must fly to a target. It does not wait: commands take effect 20 to 50 ms later, and observed
positions are as old. You write the drone's interface, a policy, a compressor for what is sent over
the network, a memory that rebuilds the rest, and Soft Actor-Critic. Server, worker and trainer are
threads of this script; on three machines the same lines are three scripts.

    python tutorials/drone_tutorial.py              about five minutes, ends with ten test flights
    python tutorials/drone_tutorial.py --crc-debug  checks that the memory rebuilds transitions
"""

import argparse
import logging
from copy import deepcopy
from threading import Thread

import gymnasium.spaces as spaces
import numpy as np
import torch
import torch.nn.functional as F
from rtgym import DEFAULT_CONFIG_DICT, DummyRCDrone, RealTimeGymInterface
from torch.distributions.normal import Normal

from tmrl_like import (
    ActorModule,
    GenericGymEnv,
    MemoryDataloading,
    RolloutWorker,
    Server,
    Trainer,
    TrainingAgent,
    TrainingOffline,
    partial,
)
from tmrl_like.nn import no_grad
from tmrl_like.util import prod

parser = argparse.ArgumentParser(description="Train a drone in real time, everything by hand.")
parser.add_argument(
    "--crc-debug", action="store_true", help="compare each rebuilt transition with the original"
)
parser.add_argument("--epochs", type=int, default=4, help="epochs of training, about a minute each")
parser.add_argument("--steps", type=int, default=1000, help="training steps per round")
arguments = parser.parse_args()
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
torch.set_num_threads(1)


# -- 1. The environment: an rtgym interface to the drone, 20 time-steps a second. ------------------


class DroneInterface(RealTimeGymInterface):
    def __init__(self):
        self.drone = DummyRCDrone()
        self.target = np.zeros(2, np.float32)

    def get_observation_space(self):
        position, target = spaces.Box(-1.0, 1.0, (1,)), spaces.Box(-0.5, 0.5, (1,))
        return spaces.Tuple((position, position, target, target))

    def get_action_space(self):
        return spaces.Box(-2.0, 2.0, (2,))

    def get_default_action(self):
        return np.zeros(2, np.float32)

    def send_control(self, control):
        self.drone.send_control(control[0], control[1])

    def reset(self, seed=None, options=None):
        self.target = np.random.uniform(-0.5, 0.5, 2).astype(np.float32)
        return self.observe(self.drone.get_observation()), {}

    def get_obs_rew_terminated_info(self):
        position = self.drone.get_observation()
        distance = np.linalg.norm(np.float32(position) - self.target)
        return self.observe(position), -distance, bool(distance < 0.01), {}

    def observe(self, position):
        return [np.float32([value]) for value in (*position, *self.target)]


# the observation holds the last 4 actions, which cover the delay until their effect is observed
ACT_BUF_LEN = 4

rtgym_config = DEFAULT_CONFIG_DICT | {
    "interface": DroneInterface,
    "time_step_duration": 0.05,
    "start_obs_capture": 0.05,
    "time_step_timeout_factor": 1.0,
    "ep_max_length": 100,
    "act_buf_len": ACT_BUF_LEN,
    "reset_act_buf": False,
}
env_cls = partial(GenericGymEnv, id="real-time-gym-ts-v1", gym_kwargs={"config": rtgym_config})
with env_cls() as dummy_env:
    observation_space, action_space = dummy_env.observation_space, dummy_env.action_space


# -- 2. The policy: a Gaussian whose samples are squashed into the action's bounds. ----------------


def mlp(n_in, n_out):
    layers = torch.nn.Linear(n_in, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Linear(128, n_out))


class DroneActor(ActorModule):
    def __init__(self, observation_space, action_space):
        super().__init__(observation_space, action_space)
        self.limit = float(action_space.high[0])
        self.net = mlp(
            sum(prod(space.shape) for space in observation_space), 2 * prod(action_space.shape)
        )

    def forward(self, obs, test=False):
        """Return actions [B, 2] and their log-densities [B]."""
        mean, log_std = self.net(torch.cat(obs, -1)).chunk(2, -1)
        distribution = Normal(mean, log_std.clamp(-20, 2).exp())
        raw = mean if test else distribution.rsample()
        log_prob = distribution.log_prob(raw) - 2 * (np.log(2) - raw - F.softplus(-2 * raw))
        return self.limit * torch.tanh(raw), log_prob.sum(-1)

    def act(self, obs, test=False):
        with torch.no_grad():
            return self(obs, test)[0].squeeze(0).numpy()


# -- 3. What goes over the network, and what the model sees. ---------------------------------------


def sample_compressor(prev_act, obs, rew, terminated, truncated, info):
    """Drop the action buffer from the observation: the memory rebuilds it from the actions."""
    return prev_act, obs[:4], rew, terminated, truncated, info


def obs_preprocessor(obs):
    """Replace both positions by the vector to the target, once with short distances enlarged.

    Worker and memory apply it right before the model.
    """
    x, y, target_x, target_y, *actions = obs
    ways = (target_x - x, target_y - y)
    return (
        *(2 * way / np.sqrt(np.abs(way) + 0.01) for way in ways),
        *(3 * way for way in ways),
        *actions,
    )


# -- 4. The memory: stores samples in lists, and rebuilds complete transitions. --------------------


class DroneMemory(MemoryDataloading):
    def append_buffer(self, buffer):
        """Append each item of the samples to a list of its own; trim the oldest."""
        if not self.data:
            self.data = [[] for _ in range(6)]
        for column, values in zip(self.data, zip(*buffer.memory, strict=True), strict=True):
            column.extend(values)
            del column[: max(0, len(column) - self.memory_size)]

    def __len__(self):
        """Return how many transitions can be rebuilt, each with the action buffers it needs."""
        return max(0, len(self.data[0]) - ACT_BUF_LEN) if self.data else 0

    def get_transition(self, item):
        acts, _, rews, terminateds, truncateds, infos = self.data
        last, new = item + ACT_BUF_LEN - 1, item + ACT_BUF_LEN
        return (
            self.obs(last),
            acts[new],
            rews[new],
            self.obs(new),
            terminateds[new],
            truncateds[new],
            infos[new],
        )

    def obs(self, index):
        """Return the environment's whole observation, with its last actions, newest at the end."""
        return *self.data[1][index], *self.data[0][index - ACT_BUF_LEN + 1 : index + 1]


# -- 5. The learning algorithm: Soft Actor-Critic (Haarnoja et al. 2018, arXiv:1812.05905). --------


class QFunction(torch.nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.net = mlp(
            sum(prod(space.shape) for space in observation_space) + prod(action_space.shape), 1
        )

    def forward(self, obs, act):
        return self.net(torch.cat((*obs, act), -1)).squeeze(-1)


class DroneAgent(TrainingAgent):
    def __init__(
        self, observation_space, action_space, device="cpu", gamma=0.95, polyak=0.98, lr=1e-3
    ):
        super().__init__(observation_space, action_space, device)
        self.gamma, self.polyak = gamma, polyak
        self.actor = DroneActor(observation_space, action_space).to(device)
        self.critics = torch.nn.ModuleList(
            QFunction(observation_space, action_space) for _ in range(2)
        ).to(device)
        self.targets = no_grad(deepcopy(self.critics))
        self.log_alpha = torch.zeros(1, requires_grad=True, device=device)
        self.target_entropy = -prod(action_space.shape)
        learnt = self.actor.parameters(), self.critics.parameters(), [self.log_alpha]
        self.optimizers = [torch.optim.Adam(parameters, lr=lr) for parameters in learnt]

    def get_actor(self):
        return self.actor

    def train(self, batch):
        obs, act, rew, next_obs, terminated, _ = batch
        alpha = self.log_alpha.exp().detach()

        with torch.no_grad():
            next_act, next_log_prob = self.actor(next_obs)
            q_next = torch.min(*(q(next_obs, next_act) for q in self.targets))
            target = rew + self.gamma * (1 - terminated) * (q_next - alpha * next_log_prob)
        loss_critic = sum(F.mse_loss(q(obs, act), target) for q in self.critics)

        new_act, log_prob = self.actor(obs)
        loss_actor = (alpha * log_prob - torch.min(*(q(obs, new_act) for q in self.critics))).mean()
        loss_alpha = -(self.log_alpha * (log_prob.detach() + self.target_entropy)).mean()

        for optimizer, loss in zip(
            self.optimizers, (loss_actor, loss_critic, loss_alpha), strict=True
        ):
            # each loss updates only its own parameters
            parameters = optimizer.param_groups[0]["params"]
            for parameter, gradient in zip(
                parameters, torch.autograd.grad(loss, parameters), strict=True
            ):
                parameter.grad = gradient
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            for old, new in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                old.lerp_(new, 1 - self.polyak)
        return {
            "loss_actor": loss_actor.detach(),
            "loss_critic": loss_critic.detach(),
            "entropy_coef": alpha,
        }


# -- 6. Server, worker and trainer. The server listens; the other two connect to it. ---------------


def main():
    server = Server(port=0, host="127.0.0.1")
    server_ip, server_port = server.address
    worker = RolloutWorker(
        env_cls=env_cls,
        actor_module_cls=DroneActor,
        sample_compressor=sample_compressor,
        obs_preprocessor=obs_preprocessor,
        crc_debug=arguments.crc_debug,
        model_path=None,
        server_ip=server_ip,
        server_port=server_port,
    )
    memory_cls = partial(
        DroneMemory,
        obs_preprocessor=obs_preprocessor,
        memory_size=100_000,
        batch_size=128,
        crc_debug=arguments.crc_debug,
    )
    training_cls = partial(
        TrainingOffline,
        env_cls=(observation_space, action_space),
        memory_cls=memory_cls,
        training_agent_cls=DroneAgent,
        epochs=arguments.epochs,
        rounds=5,
        steps=arguments.steps,
        update_buffer_interval=10,  # training steps between two checks for new samples
        update_model_interval=50,  # training steps between two policies sent to the worker
        # upper limit of training steps for each step of the drone
        max_training_steps_per_env_step=4.0,
        start_training=min(200, arguments.steps),
        device="cpu",
    )
    trainer = Trainer(
        training_cls, server_ip, model_path=None, checkpoint_path=None, server_port=server_port
    )
    with server, worker, trainer:
        flight = Thread(target=worker.run, kwargs={"test_episode_interval": 10, "verbose": False})
        flight.start()
        trainer.run()
        worker.stop()
        flight.join()
        episodes = worker.run_episodes(nb_episodes=10 if arguments.epochs > 1 else 1)
    reached = sum(episode.terminated for episode in episodes)
    mean_return = sum(episode.return_ for episode in episodes) / len(episodes)
    print(f"{reached} of {len(episodes)} flights reached the target; mean return {mean_return:.1f}")


if __name__ == "__main__":
    main()
