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

import random

import numpy as np
import torch
from _harness import benchmark
from _runs import OPTIONS, learned
from kit.simulated import Racing, SteppedRace, simulated
from kit.solo import drive, practise

from tmrl_like.envs.racing.racing_game import TICK_S

STEPS = {"racing_lidar": 5000, "racing_image": 10_000, "racing_iqn": 10_000}
LATE_S = 0.003


class LateRace(SteppedRace):
    """The game, in which an episode begins at a random time between two ticks, and of which the
    loop sees what is there a little later than it asked.
    """

    def __init__(self, track):
        super().__init__(track)
        self.restart()

    def restart(self):
        super().restart()
        self._started_s, self._ticks = self._now_s - random.uniform(0.0, TICK_S), 0

    def sleep(self, duration_s):
        self._now_s += duration_s
        seen_s = self._now_s + random.expovariate(1 / LATE_S)
        due = max(self._ticks, int((seen_s - self._started_s) / TICK_S))
        self.advance(due - self._ticks)
        self._ticks = due


class LateRacing(Racing):
    game_cls = LateRace


def learn(options, run, steps):
    task, _, seed = run
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    experiment = simulated(task, options.change, LateRacing)
    env, tests, training = experiment.env(), experiment.env(), experiment.training(device="cpu")
    agent, memory = training.agent, training.memory
    env.action_space.seed(seed)
    memory.seed(seed)
    actor = agent.get_actor()
    actor = getattr(actor, "in_numpy", lambda: None)() or actor
    steps_per_epoch, trained = training.steps * training.rounds, 0

    def test():
        drives = [drive(tests, actor) for _ in range(options.tests)]
        return float(np.mean([samples[-1].info["progress"] for samples in drives]))

    for step in practise(env, actor, memory, steps, compress=experiment.compressor):
        while trained < (step - training.start_training) * training.max_training_steps_per_env_step:
            if training.agent_scheduler is not None and trained % steps_per_epoch == 0:
                training.agent_scheduler(agent, trained // steps_per_epoch)
            agent.train(memory.sample())
            trained += 1
        yield step, test


def measure(options):
    options.variants = [options.variant]
    yield from learned(options, learn, STEPS, {task: {"goal": 1.0} for task in STEPS})


if __name__ == "__main__":
    small = {"steps": 60, "every": 60, "tests": 1, "change": "trainer.start_training=50"}
    quick = {"seeds": [0], "autogroup": 0, **small}
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
