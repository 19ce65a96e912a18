"""How soon the racing game is driven from pictures: the agent of `config/racing_image.yaml` in simulated time.

    python tests/benchmarks/racing_pictures.py --file RESULTS [--variant NAME] [--seeds 0 1 2] [--steps 10000]
                                               [--encoder FILE] [--jobs 1] [--show]

Agent and memory in a plain loop, one training step per decision; the game moves on while the environment waits for the
end of its time-step. Every 1,000 decisions a test episode without exploration gives its share of the track, 1.0 for a
whole lap. The variant's name stands for the code that PYTHONPATH leads to, and for `--encoder`, trained beforehand.
`tmrl-like record` writes frames for that, and `tmrl-like trainer config/racing_image.yaml --encoder FILE` trains it.
"""

import numpy as np
import torch
import yaml
from _harness import TESTS, benchmark
from _runs import OPTIONS, learned, practise

from tmrl_like import load_experiment
from tmrl_like.agents import SACAgent, SquashedGaussianActor
from tmrl_like.base.functional import partial
from tmrl_like.envs import real_time
from tmrl_like.envs.clock import Clock
from tmrl_like.envs.racing import MirroredLaps, racing_env
from tmrl_like.envs.racing.racing_game import TICK_S, Simulation
from tmrl_like.replay import ReplayMemory

EXPERIMENT = TESTS.parent / "config" / "racing_image.yaml"
FIRST_STEPS = 300
TOLD = {"act_buf_len": 1, "frame_stack": {1: 4}}  # to the memory, of the environment


class SimulatedGame(Simulation):
    """The game on a clock of its own, which goes while somebody sleeps."""

    now_s = 0.0

    def __init__(self, track):
        self._controls, self._over_s = (0.0, 0.0, 0.0), 0.0
        super().__init__(track)

    def drive(self, *controls):
        self._controls = controls

    def look(self):
        return self.state

    def close(self): ...

    def sleep(self, seconds):
        self.now_s += seconds
        self._over_s += seconds
        while self._over_s >= TICK_S - 1e-9:
            self.tick(*self._controls)
            self._over_s -= TICK_S


def make_env():
    """`RacingEnv` in simulated time."""
    game = SimulatedGame(1)
    racing_env.RacingGame = lambda track: game
    real_time.Clock = lambda spin_s: Clock(0.0, lambda: game.now_s, game.sleep)
    return load_experiment(EXPERIMENT, parts=("env",)).env()


def learn(options, run, steps):
    _, _, seed = run
    experiment = yaml.safe_load(EXPERIMENT.read_text())
    torch.manual_seed(seed)
    np.random.seed(seed)
    env = make_env()
    env.action_space.seed(seed)
    arguments = {name: experiment["agent"]["init_args"][name] for name in ("gamma", "polyak", "actor_polyak")}
    encoder = {"picture_encoder": options.encoder} if options.encoder else {}
    rates = dict.fromkeys(("lr_actor", "lr_critic", "lr_entropy"), 3e-4)
    actor_cls = partial(SquashedGaussianActor, hidden_sizes=(128, 128))
    spaces = env.observation_space, env.action_space
    made = SACAgent(*spaces, actor_cls=actor_cls, entropy_coef=0.1, **arguments, **rates, **encoder)
    memory = ReplayMemory(
        memory_size=2 * steps,
        batch_size=64,
        n_steps=5,
        gamma=made.gamma,
        sample_preprocessor=MirroredLaps(seed),
        **TOLD,
    )
    memory.seed(seed)
    compress = ReplayMemory.compressor(**TOLD)
    actor = made.get_actor()

    def choose(step, obs):
        return env.action_space.sample() if step <= FIRST_STEPS // 3 else actor.act_(obs)

    def train(step):
        if step > FIRST_STEPS:
            made.train(memory.sample())

    how = {"compress": compress, "tests_in_env": True}
    return practise(env, memory, choose, train, steps, options.every, lambda: test_share(env, actor), **how)


def test_share(env, actor):
    over = False
    obs, _ = env.reset()
    while not over:
        obs, _, terminated, truncated, info = env.step(actor.act_(obs, test=True))
        over = terminated or truncated
    return float(info["progress"])


def measure(options):
    options.tasks, options.variants = ["racing"], [options.variant]
    yield from learned(options, learn, {"racing": 10_000}, {"racing": {"goal": 1.0}})


if __name__ == "__main__":
    quick = {"seeds": [0], "steps": 400, "every": 400, "autogroup": 0}
    benchmark(__doc__, measure, variant="shared encoder", encoder=None, **OPTIONS, quick=quick)
