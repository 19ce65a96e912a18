"""tmrl's server, worker and trainer, for `peer_faults.py`: run in tmrl's own environment, one part a process.

What a user writes: an environment, an actor, a memory and a training agent, on tmrl's public classes. The environment
numbers each observation; its log says what it produced, and the memory's what the trainer has.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tmrl.actor import TorchActorModule
from tmrl.memory import TorchMemory
from tmrl.networking import RolloutWorker, Server, Trainer
from tmrl.training import TrainingAgent
from tmrl.training_offline import TorchTrainingOffline

SET: dict[str, Any] = json.loads(os.environ["PEER_FAULTS"])
FOLDER = Path(SET["folder"])
EPISODE = 20


class Numbered(gymnasium.Env[Any, Any]):
    """100 steps a second; the first number of an observation counts all that it gave, resets included."""

    observation_space = spaces.Box(-np.inf, np.inf, (SET["numbers"],), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.given = self.steps = 0
        self.log = open(FOLDER / f"produced-{SET['first']}", "a", buffering=1)  # noqa: SIM115

    def reset(self, **_: Any) -> Any:
        self.steps = 0
        return self.observe(0.0), {}

    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        self.steps += 1
        if self.given == SET.get("fails_at"):
            if SET["fails"] == "raises":
                raise OSError("the motor does not answer")
            time.sleep(3600)
        return self.observe(float(np.asarray(action).ravel()[0])), 0.5, self.steps == EPISODE - 1, False, {}

    def observe(self, action: float) -> Any:
        self.given += 1
        self.log.write(f"{SET['first'] + self.given} {action}\n")
        obs = np.zeros(SET["numbers"], np.float32)
        obs[0] = SET["first"] + self.given
        return obs


class Actor(TorchActorModule):
    def __init__(self, observation_space: Any, action_space: Any, device: str = "cpu") -> None:
        super().__init__(observation_space, action_space, device)
        self.layer = torch.nn.Linear(1, 1)

    def act(self, obs: Any, test: bool = False) -> Any:
        return torch.tanh(self.layer(obs[:, :1] * 1e-6)).squeeze(0).numpy()


class Samples(TorchMemory):
    def append_buffer(self, buffer: Any) -> None:
        self.data += buffer.memory
        now = FOLDER / "memory.tmp"
        now.write_text(json.dumps([int(sample[1][0]) for sample in self.data]))
        now.replace(FOLDER / "memory")

    def __len__(self) -> int:
        return max(len(self.data) - 1, 0)

    def get_transition(self, item: int) -> Any:
        _, obs, reward, terminated, truncated, info = self.data[item + 1]
        return self.data[item][1], np.zeros(1, np.float32), np.float32(reward), obs, terminated, truncated, info


class Agent(TrainingAgent):
    def __init__(self, observation_space: Any, action_space: Any, device: str) -> None:
        super().__init__(observation_space, action_space, device)
        self.actor = Actor(observation_space, action_space)
        self.trained = 0

    def train(self, batch: Any) -> dict[str, float]:
        self.trained += 1
        with torch.no_grad():
            self.actor.layer.bias.fill_(float("nan") if SET.get("diverges") and self.trained > 100 else 0.1)
        return {"trained": self.trained}

    def get_actor(self) -> Any:
        return self.actor


def main(part: str) -> None:
    torch.set_num_threads(1)
    shared = {"password": SET["password"], "security": None}
    if part == "server":
        server = Server(port=SET["port"], local_port=SET["local_port"], **shared)
        while server:
            time.sleep(1)
    shared |= {"server_ip": "127.0.0.1", "server_port": SET["port"]}
    if part == "worker":
        worker = RolloutWorker(
            Numbered,
            Actor,
            max_samples_per_episode=EPISODE,
            model_path=str(FOLDER / "worker.tmod"),
            local_port=SET["local_port"],
            **shared,
        )
        while not (FOLDER / "stop").exists():
            worker.run(nb_episodes=1, verbose=False)
        time.sleep(3600)  # connected, until it is ended
    training = partial(
        TorchTrainingOffline,
        env_cls=(Numbered.observation_space, Numbered.action_space),
        memory_cls=partial(Samples, batch_size=1),
        training_agent_cls=Agent,
        epochs=10_000,
        rounds=1,
        steps=50,
        update_model_interval=25,
        update_buffer_interval=5,
        sleep_between_buffer_retrieval_attempts=0.1,
        device="cpu",
    )
    Trainer(
        training,
        local_com_port=SET["local_port"],
        model_path=str(FOLDER / "trainer.tmod"),
        checkpoint_path=SET["checkpoint"],
        **shared,
    ).run()


if __name__ == "__main__":
    main(sys.argv[1])
