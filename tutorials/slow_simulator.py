"""A slow simulator behind HTTP: eight environments in lockstep with training.

Many simulators are reached through a REST service: each step is a request, and its answer takes
some time. This script starts such a service, a pendulum that answers after 50 ms, and drives it
through a real HTTP client: first with one environment, then with eight in eight threads of one
worker, each with its own episodes, all with one policy. Gathering and training run in lockstep:
each environment step allows one training step.

Run it:

    python tutorials/slow_simulator.py              half a minute
"""

import argparse
import http.client
import itertools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import gymnasium
import numpy as np

from tmrl_like import RolloutWorker, Server, Trainer, TrainingOffline, partial
from tmrl_like.agents import SACAgent, SquashedGaussianActor
from tmrl_like.networking import WorkerOptions
from tmrl_like.replay import ReplayMemory

parser = argparse.ArgumentParser(description="Train on a slow simulator behind HTTP.")
parser.add_argument(
    "--delay", type=float, default=0.05, help="seconds until the simulator answers a step"
)
parser.add_argument("--envs", type=int, default=8, help="environments at a time")
parser.add_argument("--steps", type=int, default=100, help="environment steps of each")
arguments = parser.parse_args()


# ==================================================================================================
# 1. The simulator: a web service, unaware of reinforcement learning.
# ==================================================================================================


class Simulator(BaseHTTPRequestHandler):
    """Handler of POST /reset {"id", "seed"} and POST /step {"id", "action"}, with one pendulum for
    each id.
    """

    protocol_version = "HTTP/1.1"  # connections stay open
    disable_nagle_algorithm = True
    pendulums = {}  # noqa: RUF012

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/reset":
            pendulum = self.pendulums.setdefault(
                order["id"], gymnasium.make("Pendulum-v1", max_episode_steps=50)
            )
            obs, _ = pendulum.reset(seed=order["seed"])
            answer = {"obs": obs.tolist()}
        else:
            time.sleep(arguments.delay)
            obs, reward, terminated, truncated, _ = self.pendulums[order["id"]].step(
                np.float32(order["action"])
            )
            answer = {
                "obs": obs.tolist(),
                "reward": float(reward),
                "terminated": terminated,
                "truncated": truncated,
            }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


service = ThreadingHTTPServer(("127.0.0.1", 0), Simulator)
threading.Thread(target=service.serve_forever, daemon=True).start()


# ==================================================================================================
# 2. The environment: gymnasium's interface to the service, each with a connection of its own.
# ==================================================================================================


class PendulumOverHttp(gymnasium.Env):
    numbers = itertools.count()

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(
            np.float32([-1, -1, -8]), np.float32([1, 1, 8])
        )
        self.action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,))
        self.number = next(self.numbers)
        self.client = http.client.HTTPConnection(*service.server_address, timeout=10)

    def ask(self, path, **order):
        self.client.request("POST", path, json.dumps({"id": self.number, **order}))
        return json.loads(self.client.getresponse().read())

    def reset(self, *, seed=None, options=None):
        return np.float32(self.ask("/reset", seed=seed)["obs"]), {}

    def step(self, action):
        answer = self.ask("/step", action=action.tolist())
        return (
            np.float32(answer["obs"]),
            answer["reward"],
            answer["terminated"],
            answer["truncated"],
            {},
        )

    def close(self):
        self.client.close()


# ==================================================================================================
# 3. Server, trainer and worker. New are the worker's `envs` and `run_synchronous`.
# ==================================================================================================

actor_cls = partial(SquashedGaussianActor, hidden_sizes=(64, 64))
training_cls = partial(
    TrainingOffline,
    env_cls=PendulumOverHttp,
    memory_cls=partial(ReplayMemory, batch_size=64),
    training_agent_cls=partial(SACAgent, actor_cls=actor_cls),
    epochs=float("inf"),
    start_training=20,
    max_training_steps_per_env_step=1.0,
    update_model_interval=10,
    device="cpu",
)


def measure(envs, where):
    """Return environment steps per second, in lockstep with training."""
    options = WorkerOptions(envs=envs)
    with RolloutWorker(
        PendulumOverHttp, actor_cls, model_path=None, options=options, **where
    ) as worker:
        # a first episode of each environment, not timed, until its samples are in memory
        worker.run_synchronous(nb_steps=envs, end_episodes=False)
        started = time.perf_counter()
        worker.run_synchronous(nb_steps=envs * arguments.steps, initial_steps=0, end_episodes=False)
        steps = sum(lane.loop.collected_steps for lane in worker.lanes) - 50 * envs
        return steps / (time.perf_counter() - started)


with Server(port=0, host="127.0.0.1") as server:
    where = {"server_ip": "127.0.0.1", "server_port": server.address[1]}
    with Trainer(training_cls, model_path=None, checkpoint_path=None, sinks=[], **where) as trainer:
        threading.Thread(target=trainer.run, daemon=True).start()
        one, many = measure(1, where), measure(arguments.envs, where)
        pacer, made = trainer.training.pacer, trainer.training.total_updates

print(
    f"1 environment: {one:.1f} steps per second; {arguments.envs} environments: {many:.1f}, "
    f"{many / one:.1f} times that"
)
print(
    f"environment steps that allowed a training step: {pacer.tasked_steps}; training steps: {made}"
)
service.shutdown()
