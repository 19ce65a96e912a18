"""How soon the included experiments learn to drive the racing game, in simulated time.

    python tests/benchmarks/laps.py --file RESULTS
                                    [--tasks racing_lidar racing_image racing_iqn] [--seeds 0 1 2]
                                    [--steps 5000] [--variant NAME --change "agent.gamma=0.95
                                    actor.noise_beta=1"] [--jobs 1] [--show]

Agent and memory of config/TASK.yaml run in a plain loop, with as many training steps per decision
as the file allows. The game advances while the environment waits for the end of its time-step.
After every tenth of the decisions, five test episodes without exploration give their mean share of
the track, 1.0 for five whole laps. They begin at a random time between two of the game's ticks, and
waits are 3 ms late on average, so that episodes differ. `--variant` names the experiment with the
overrides of `--change`: `agent.picture_encoder=FILE` begins with an encoder trained beforehand.
"""

import numpy as np
import torch
from _harness import TESTS, benchmark
from _runs import OPTIONS, drive, learned, practise

from tmrl_like import load_experiment
from tmrl_like.envs import real_time
from tmrl_like.envs.clock import Clock
from tmrl_like.envs.racing import racing_env
from tmrl_like.envs.racing.racing_game import TICK_S, Simulation

STEPS = {"racing_lidar": 5000, "racing_image": 10_000, "racing_iqn": 10_000}
LATE_S = 0.003


class SimulatedGame(Simulation):
    """The game on a clock of its own, which advances only in `sleep`."""

    def __init__(self, track, seed):
        self.now_s, self._random = 0.0, np.random.default_rng(seed)
        self.drive(0.0, 0.0, 0.0)
        super().__init__(track)

    def restart(self):
        super().restart()
        self._started_s, self._ticks_since = self.now_s - self._random.uniform(0.0, TICK_S), 0

    def drive(self, *controls):
        self._controls = controls

    def look(self):
        return self.state

    def close(self): ...

    def sleep(self, seconds):
        self.now_s += seconds
        seen_s = self.now_s + self._random.exponential(LATE_S)
        for _ in range(self._ticks_since, int((seen_s - self._started_s) / TICK_S)):
            self.tick(*self._controls)
            self._ticks_since += 1


def learn(options, run, steps):
    task, _, seed = run
    torch.manual_seed(seed)
    np.random.seed(seed)
    game = SimulatedGame(1, seed)
    racing_env.RacingGame = lambda track: game
    real_time.Clock = lambda spin_s: Clock(0.0, lambda: game.now_s, game.sleep)
    changes = [change.split("=", 1) for change in options.change.split()]
    overrides = [(tuple(key.split(".")), text) for key, text in changes]
    experiment = load_experiment(TESTS.parent / "config" / f"{task}.yaml", overrides)
    env, training = experiment.env(), experiment.training(device="cpu")
    agent, memory = training.agent, training.memory
    env.action_space.seed(seed)
    memory.seed(seed)
    actor = agent.get_actor()
    actor = getattr(actor, "in_numpy", lambda: None)() or actor
    compress = experiment.compressor or (lambda *sample: sample)
    steps_per_epoch, trained = training.steps * training.rounds, 0

    def train(step):
        nonlocal trained
        while trained < (step - training.start_training) * training.max_training_steps_per_env_step:
            if training.agent_scheduler is not None and trained % steps_per_epoch == 0:
                training.agent_scheduler(agent, trained // steps_per_epoch)
            agent.train(memory.sample())
            trained += 1

    def test():
        ends = [drive(env, actor)[1] for _ in range(options.tests)]
        return float(np.mean([info["progress"] for info in ends]))

    how = {"extras": lambda: actor.extras, "compress": compress, "tests_in_env": True}
    return practise(
        env, memory, lambda step, obs: actor.act_(obs), train, steps, options.every, test, **how
    )


def measure(options):
    options.variants = [options.variant]
    yield from learned(options, learn, STEPS, {task: {"goal": 1.0} for task in STEPS})


if __name__ == "__main__":
    small = {"steps": 60, "every": 60, "tests": 1, "change": "trainer.start_training=50"}
    quick = {"tasks": ["racing_lidar", "racing_iqn"], "seeds": [0], "autogroup": 0, **small}
    benchmark(
        __doc__,
        measure,
        tasks=list(STEPS),
        variant="as it ships",
        change="",
        tests=5,
        **OPTIONS,
        quick=quick,
    )
