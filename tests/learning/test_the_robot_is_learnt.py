"""The robot of config/robot.yaml, without its clock: memory and agent as they ship must learn it."""

import numpy as np
import pytest
import torch
from solo import Simulated, begin, drive, learn, sac, seen_alike

from tmrl_like.agents import EnsembleCritic, SquashedGaussianActor
from tmrl_like.base.functional import partial
from tmrl_like.envs.robot import robot_env as robot
from tmrl_like.envs.robot.driver import RobotState
from tmrl_like.envs.robot.physics import COMMAND, CYCLE_S, STATE, Arm, ArmOptions
from tmrl_like.replay import ReplayMemory

ACTIONS = 2


class ClocklessArm:
    """The arm's driver, and its time: it moves while somebody sleeps, and nobody waits for that."""

    def __init__(self, seed):
        self._now_s = 0.0
        self._arm = Arm(ArmOptions(seed=seed), 0.0)
        self._newest = b""
        self.sleep(0.1)

    def monotonic(self):
        return self._now_s

    def sleep(self, duration_s):
        for _ in range(round(duration_s / CYCLE_S)):
            self._newest = self._arm.cycle(self._now_s) or self._newest
            self._now_s += CYCLE_S

    def connect(self): ...

    def close(self): ...

    def read_state(self):
        cycle, time_s, *numbers, is_stopped = STATE.unpack(self._newest)
        return RobotState(cycle, time_s, tuple(numbers[:2]), tuple(numbers[2:]), is_stopped)

    def send_command(self, command):
        self._arm.receive(self._now_s, COMMAND.pack(False, *command.velocity_rad_s))


class ClocklessRobotEnv(Simulated):
    """`RobotEnv` in simulated time."""

    def __init__(self, seed, monkeypatch):
        arm = ClocklessArm(seed)
        monkeypatch.setattr(robot, "time", arm)
        env = robot.RobotEnv(lambda: arm, act_buf_len=ACTIONS)
        super().__init__(env, arm)


ROBOT_ACTOR = partial(SquashedGaussianActor, noise_beta=1.5, noise_steps=60, hidden_sizes=(64, 64))


def robot_agent(env):
    return sac(env, ROBOT_ACTOR, critic_cls=partial(EnsembleCritic, layer_norm=False), gamma=0.9)


def share_reached(make_env, actor, episodes):
    """Of the targets; the arm whose clock counts is the newest, so each is made when its turn comes."""
    view = robot.TargetUpClose()
    return np.mean([drive(make_env(1000 + i), actor, ACTIONS, True, view)[2] for i in range(episodes)])


@pytest.mark.learn
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_arm_reaches_its_targets_after_a_minute(seed, monkeypatch):
    pytest.importorskip("mujoco")
    begin(seed)
    env, view = ClocklessRobotEnv(seed, monkeypatch), robot.TargetUpClose()
    agent = robot_agent(env)
    memory = ReplayMemory(
        batch_size=128,
        act_buf_len=ACTIONS,
        obs_preprocessor=view,
        memory_size=10_000,
        sample_preprocessor=robot.OtherTargets(seed),
    )
    memory.seed(seed)
    changes = []

    def collect():
        samples, *_ = drive(env, agent.get_actor(), ACTIONS, False, view)
        changes.append(np.abs(np.diff([sample[0] for sample in samples[ACTIONS:]], axis=0)))
        return samples

    learn(agent, memory, collect, 1200, first_steps=100, ratio=20)
    envs = (ClocklessRobotEnv(1000 + i, monkeypatch) for i in range(40))  # each with its clock, when its turn comes
    _, totals, reached, _ = zip(*[drive(one, agent.get_actor(), ACTIONS, True, view) for one in envs], strict=True)
    change = np.concatenate(changes).mean()
    print(f"seed {seed}: return {np.mean(totals):.2f}, reached {np.mean(reached):.0%}, change of actions {change:.3f}")
    assert change < 0.45  # with independent noise 0.56 and 0.66, seeds 2 and 1
    assert np.mean(reached) >= 0.8
    assert np.mean(totals) > -10.0


def test_the_view_of_the_target_is_the_same_for_arrays_and_batches():
    obs = tuple(np.array(v, np.float32) for v in ((0.1, -0.2), (1.0, -1.0), (0.5, 0.1), (0.3, -0.004), (2.0, 0.0)))
    alone = seen_alike(robot.TargetUpClose(), obs)
    assert alone[2] == pytest.approx([0.7 * 0.3 / 0.31**0.5, -0.7 * 0.004 / 0.014**0.5])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_another_target_comes_with_the_reward_and_the_end_that_belong_to_it(share):
    """Against the interface's own arithmetic, for each transition of a batch."""
    rng, interface = np.random.default_rng(0), robot.RobotInterface(ClocklessArm.__new__(ClocklessArm))
    targets = [robot.tip_m(rng.uniform(*np.transpose(robot.TARGETS_RAD))) for _ in range(8)]
    places = [rng.uniform(*np.transpose(robot.TARGETS_RAD)) for _ in range(8)]

    def seen(place, target, speed):
        interface.target_m = target
        return interface.observe(RobotState(0, 0.0, tuple(place), (speed, 0.0), False))

    def batch(speed):
        rows = zip(*(seen(place, target, speed) for place, target in zip(places, targets, strict=True)), strict=True)
        return robot.TargetUpClose()(tuple(torch.from_numpy(np.stack(row)) for row in rows))

    places[:4], targets[2:6] = [places[0]] * 4, [robot.tip_m(places[0])] * 4  # some rest on the targets of some
    flags = torch.zeros(8)
    last_obs, _, rew, obs, terminated, _ = robot.OtherTargets(0, share)(
        batch(0.5), torch.zeros(8, 2), torch.full((8,), -9.0), batch(0.0), flags, flags
    )
    for i, place in enumerate(places):
        target = next(t for t in targets if np.allclose(seen(place, t, 0.0)[3], obs[3][i], atol=1e-6))
        assert np.allclose(seen(place, target, 0.5)[3], last_obs[3][i], atol=1e-6)
        distance = np.linalg.norm(target - robot.tip_m(place))
        assert rew[i] == pytest.approx(-9.0 if share == 0.0 else -distance - robot.STEP_COSTS, abs=1e-6)
        assert terminated[i] == float(share == 1.0 and distance < robot.REACHED_M)
    assert bool(terminated.any()) == (share == 1.0)
    assert torch.allclose(obs[2], 0.7 * obs[3] / (obs[3].abs() + 0.01) ** 0.5)
