"""The library tutorial: everything by hand, in one script.

A drone must fly to a target. It does not wait for us: what we order takes effect 20 to 50 ms later, what
we see is as old. You will write the drone's interface, a policy, a way to send only what is needed, a
replay memory that rebuilds the rest, and the learning algorithm (Soft Actor-Critic), and run them as a
server, a trainer and a worker. They are threads of this script here; on three machines the same lines
stand in three scripts.

Run it:

    python tutorials/drone_tutorial.py              about five minutes, ends with a drone that flies
    python tutorials/drone_tutorial.py --crc-debug  checks that the memory rebuilds what the drone did
"""

import argparse
import itertools
import logging
import random
from copy import deepcopy
from threading import Thread

import gymnasium.spaces as spaces
import numpy as np
import torch
import torch.nn.functional as F
from rtgym import DEFAULT_CONFIG_DICT, DummyRCDrone, RealTimeGymInterface
from torch.distributions.normal import Normal

import tmrl_like.config.config_constants as cfg
from tmrl_like.actor import ActorModule
from tmrl_like.envs import GenericGymEnv
from tmrl_like.memory_dataloading import MemoryDataloading
from tmrl_like.networking import RolloutWorker, Server, Trainer
from tmrl_like.nn import copy_shared, no_grad
from tmrl_like.training import TrainingAgent
from tmrl_like.training_offline import TrainingOffline
from tmrl_like.util import cached_property, partial, prod

parser = argparse.ArgumentParser(description="Train a drone in real time, everything by hand.")
parser.add_argument("--crc-debug", action="store_true", help="compare each rebuilt transition with the original")
parser.add_argument("--epochs", type=int, default=4, help="epochs of training, about a minute each")
parser.add_argument("--steps", type=int, default=1000, help="training steps per round")
arguments = parser.parse_args()

CRC_DEBUG = arguments.crc_debug

logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")


# ======================================================================================================
# 1. The server. It knows no address; workers and trainer come to it.
# ======================================================================================================

server = Server(port=0, host="127.0.0.1", min_samples_per_server_packet=1)
server_ip, server_port = server.address


# ======================================================================================================
# 2. The environment: an rtgym interface to the drone, 20 time-steps a second.
# ======================================================================================================


class DroneInterface(RealTimeGymInterface):
    def __init__(self):
        self.drone = None
        self.target = np.zeros(2, dtype=np.float32)

    def get_observation_space(self):
        position = spaces.Box(low=-1.0, high=1.0, shape=(1,))
        target = spaces.Box(low=-0.5, high=0.5, shape=(1,))
        return spaces.Tuple((position, position, target, target))

    def get_action_space(self):
        return spaces.Box(low=-2.0, high=2.0, shape=(2,))

    def get_default_action(self):
        return np.zeros(2, dtype=np.float32)

    def send_control(self, control):
        self.drone.send_control(control[0], control[1])

    def reset(self, seed=None, options=None):
        if self.drone is None:
            self.drone = DummyRCDrone()
        self.target = np.random.uniform(-0.5, 0.5, size=2).astype(np.float32)
        return self.observe(self.drone.get_observation()), {}

    def get_obs_rew_terminated_info(self):
        position = self.drone.get_observation()
        distance = np.linalg.norm(np.array(position, dtype=np.float32) - self.target)
        return self.observe(position), -distance, bool(distance < 0.01), {}

    def observe(self, position):
        return [np.array([value], dtype=np.float32) for value in (*position, *self.target)]


ACT_BUF_LEN = 4  # the observation carries the last 4 actions: it takes that long until their effect is seen

rtgym_config = DEFAULT_CONFIG_DICT.copy()
rtgym_config["interface"] = DroneInterface
rtgym_config["time_step_duration"] = 0.05
rtgym_config["start_obs_capture"] = 0.05
rtgym_config["time_step_timeout_factor"] = 1.0
rtgym_config["ep_max_length"] = 100
rtgym_config["act_buf_len"] = ACT_BUF_LEN
rtgym_config["reset_act_buf"] = False

env_cls = partial(GenericGymEnv, id="real-time-gym-ts-v1", gym_kwargs={"config": rtgym_config})

with env_cls() as dummy_env:
    observation_space, action_space = dummy_env.observation_space, dummy_env.action_space


# ======================================================================================================
# 3. The policy: a Gaussian whose samples are squashed into the action's bounds.
# ======================================================================================================

LOG_STD_MIN, LOG_STD_MAX = -20, 2


def mlp(sizes, activation=torch.nn.ReLU, output_activation=torch.nn.Identity):
    layers = []
    for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        layers += [torch.nn.Linear(n_in, n_out), activation() if i < len(sizes) - 2 else output_activation()]
    return torch.nn.Sequential(*layers)


class DroneActor(ActorModule):
    def __init__(self, observation_space, action_space, hidden_sizes=(128, 128)):
        super().__init__(observation_space, action_space)
        dim_obs = sum(prod(space.shape) for space in observation_space)
        dim_act = action_space.shape[0]
        self.act_limit = float(action_space.high[0])
        self.net = mlp([dim_obs, *hidden_sizes], output_activation=torch.nn.ReLU)
        self.mu_layer = torch.nn.Linear(hidden_sizes[-1], dim_act)
        self.log_std_layer = torch.nn.Linear(hidden_sizes[-1], dim_act)

    def forward(self, obs, test=False, with_log_prob=True):
        hidden = self.net(torch.cat(obs, -1))
        mu = self.mu_layer(hidden)
        std = torch.exp(torch.clamp(self.log_std_layer(hidden), LOG_STD_MIN, LOG_STD_MAX))
        distribution = Normal(mu, std)
        raw = mu if test else distribution.rsample()
        log_prob = None
        if with_log_prob:
            log_prob = distribution.log_prob(raw).sum(-1)
            log_prob -= (2 * (np.log(2) - raw - F.softplus(-2 * raw))).sum(-1)
        return self.act_limit * torch.tanh(raw), log_prob

    def act(self, obs, test=False):
        with torch.no_grad():
            action, _ = self.forward(obs, test, with_log_prob=False)
            return action.squeeze(0).cpu().numpy()


class QFunction(torch.nn.Module):
    def __init__(self, observation_space, action_space, hidden_sizes=(128, 128)):
        super().__init__()
        dim = sum(prod(space.shape) for space in observation_space) + action_space.shape[0]
        self.q = mlp([dim, *hidden_sizes, 1])

    def forward(self, obs, act):
        return self.q(torch.cat((*obs, act), -1)).squeeze(-1)


class ActorCritic(torch.nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.actor = DroneActor(observation_space, action_space)
        self.q1 = QFunction(observation_space, action_space)
        self.q2 = QFunction(observation_space, action_space)


# ======================================================================================================
# 4. What goes over the network: the action buffer can be rebuilt from the actions, so we drop it.
# ======================================================================================================


def sample_compressor(prev_act, obs, rew, terminated, truncated, info):
    return prev_act, obs[:4], rew, terminated, truncated, info


# What the model sees is another matter: the way to the target, steep where the target is near. The worker and
# the memory both apply this right before the model; samples carry what the drone really saw.


def obs_preprocessor(obs):
    x, y, target_x, target_y, *actions = obs
    ways = (target_x - x, target_y - y)
    return (*(2 * way / np.sqrt(np.abs(way) + 0.01) for way in ways), *(3 * way for way in ways), *actions)


# ======================================================================================================
# 5. The worker: drives the drone with the newest policy and sends what it sees.
# ======================================================================================================

run_name = "tutorial"
worker_model_path = cfg.WEIGHTS_FOLDER / f"{run_name}.safetensors"

worker = RolloutWorker(
    env_cls=env_cls,
    actor_module_cls=DroneActor,
    sample_compressor=sample_compressor,
    device="cpu",
    server_ip=server_ip,
    server_port=server_port,
    min_samples_per_worker_packet=1,
    max_samples_per_episode=1000,
    model_path=worker_model_path,
    obs_preprocessor=obs_preprocessor,
    crc_debug=CRC_DEBUG,
)


# ======================================================================================================
# 6. The memory: stores what arrives in lists, and rebuilds whole transitions.
# ======================================================================================================


class DroneMemory(MemoryDataloading):
    def __init__(
        self,
        act_buf_len,
        device="cpu",
        nb_steps=1,
        obs_preprocessor=None,
        sample_preprocessor=None,
        memory_size=1_000_000,
        batch_size=256,
        dataset_path="",
        crc_debug=False,
    ):
        self.act_buf_len = act_buf_len
        super().__init__(
            device=device,
            nb_steps=nb_steps,
            obs_preprocessor=obs_preprocessor,
            sample_preprocessor=sample_preprocessor,
            memory_size=memory_size,
            batch_size=batch_size,
            dataset_path=dataset_path,
            crc_debug=crc_debug,
        )

    def append_buffer(self, buffer):
        """Append each item of the samples to a list of its own; trim the oldest."""
        if not self.data:
            self.data = [[] for _ in range(6)]
        for column, values in zip(self.data, zip(*buffer.memory, strict=True), strict=True):
            column.extend(values)
        to_trim = len(self.data[0]) - self.memory_size
        if to_trim > 0:
            for column in self.data:
                del column[:to_trim]

    def __len__(self):
        """A transition needs a whole history: the action buffer of its older observation."""
        return max(0, len(self.data[0]) - self.act_buf_len) if self.data else 0

    def get_transition(self, item):
        acts, obs, rews, terminateds, truncateds, infos = self.data
        new = item + self.act_buf_len
        last = new - 1
        return (
            (*obs[last], *self.action_buffer(last)),
            acts[new],
            rews[new],
            (*obs[new], *self.action_buffer(new)),
            terminateds[new],
            truncateds[new],
            infos[new],
        )

    def action_buffer(self, index):
        """The last actions, as the observation `index` carried them."""
        return self.data[0][index - self.act_buf_len + 1 : index + 1]


memory_cls = partial(
    DroneMemory,
    act_buf_len=ACT_BUF_LEN,
    obs_preprocessor=obs_preprocessor,
    memory_size=100_000,
    batch_size=128,
    crc_debug=CRC_DEBUG,
)


# ======================================================================================================
# 7. The learning algorithm: Soft Actor-Critic (Haarnoja et al. 2018, arXiv:1812.05905).
# ======================================================================================================


class DroneAgent(TrainingAgent):
    model_nograd = cached_property(lambda self: no_grad(copy_shared(self.model)))

    def __init__(
        self,
        observation_space,
        action_space,
        device="cpu",
        model_cls=ActorCritic,
        gamma=0.95,
        polyak=0.98,
        lr=1e-3,
        target_entropy=None,
    ):
        super().__init__(observation_space, action_space, device)
        self.model = model_cls(observation_space, action_space).to(device)
        self.model_target = no_grad(deepcopy(self.model))
        self.gamma, self.polyak = gamma, polyak
        self.actor_optimizer = torch.optim.Adam(self.model.actor.parameters(), lr=lr)
        critics = itertools.chain(self.model.q1.parameters(), self.model.q2.parameters())
        self.critic_optimizer = torch.optim.Adam(critics, lr=lr)
        self.target_entropy = -prod(action_space.shape) if target_entropy is None else target_entropy
        self.log_alpha = torch.zeros(1, requires_grad=True, device=device)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=lr)

    def get_actor(self):
        return self.model_nograd.actor

    def train(self, batch):
        obs, act, rew, next_obs, terminated, _ = batch
        new_act, log_prob = self.model.actor(obs)
        alpha = self.log_alpha.exp().detach()

        with torch.no_grad():
            next_act, next_log_prob = self.model.actor(next_obs)
            q_next = torch.min(self.model_target.q1(next_obs, next_act), self.model_target.q2(next_obs, next_act))
            target = rew + self.gamma * (1 - terminated) * (q_next - alpha * next_log_prob)
        loss_critic = F.mse_loss(self.model.q1(obs, act), target) + F.mse_loss(self.model.q2(obs, act), target)
        self.critic_optimizer.zero_grad()
        loss_critic.backward()
        self.critic_optimizer.step()

        no_grad(self.model.q1), no_grad(self.model.q2)
        q = torch.min(self.model.q1(obs, new_act), self.model.q2(obs, new_act))
        loss_actor = (alpha * log_prob - q).mean()
        self.actor_optimizer.zero_grad()
        loss_actor.backward()
        self.actor_optimizer.step()
        for parameter in itertools.chain(self.model.q1.parameters(), self.model.q2.parameters()):
            parameter.requires_grad_(True)

        loss_alpha = -(self.log_alpha * (log_prob.detach() + self.target_entropy)).mean()
        self.alpha_optimizer.zero_grad()
        loss_alpha.backward()
        self.alpha_optimizer.step()

        with torch.no_grad():
            for target_p, p in zip(self.model_target.parameters(), self.model.parameters(), strict=True):
                target_p.lerp_(p, 1 - self.polyak)
        return {
            "loss_actor": loss_actor.detach(),
            "loss_critic": loss_critic.detach(),
            "entropy_coef": alpha,
            "entropy_nats": -log_prob.detach().mean(),
        }


# ======================================================================================================
# 8. The trainer: trains from what arrives, never more than 4 steps per step of the drone.
# ======================================================================================================

training_cls = partial(
    TrainingOffline,
    env_cls=(observation_space, action_space),
    memory_cls=memory_cls,
    training_agent_cls=DroneAgent,
    epochs=arguments.epochs,
    rounds=5,
    steps=arguments.steps,
    update_buffer_interval=10,
    update_model_interval=50,
    max_training_steps_per_env_step=4.0,
    start_training=min(200, arguments.steps),
    device="cpu",
)

trainer = Trainer(
    training_cls=training_cls,
    server_ip=server_ip,
    server_port=server_port,
    model_path=cfg.WEIGHTS_FOLDER / f"{run_name}_t.safetensors",
    checkpoint_path=None,
)


# ======================================================================================================
# 9. Go. The worker drives in a thread; the trainer trains here until its epochs are done.
# ======================================================================================================


def drive():
    worker.run(test_episode_interval=10, verbose=False)


def main():
    torch.set_num_threads(1)
    random.seed(0)
    worker_thread = Thread(target=drive, daemon=True)
    worker_thread.start()
    try:
        trainer.run()
    finally:
        trainer.close()
        worker.stop()
        worker_thread.join(5)
    episodes = worker.run_episodes(nb_episodes=10 if arguments.epochs > 1 else 1)
    reached = sum(episode.terminated for episode in episodes)
    mean_return = sum(episode.return_ for episode in episodes) / len(episodes)
    print(f"{reached} of {len(episodes)} flights reached the target; mean return {mean_return:.1f}")
    worker.close()
    server.close()


if __name__ == "__main__":
    main()
