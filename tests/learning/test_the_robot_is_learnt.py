"""The robot of config/robot.yaml, without its clock: memory and agent as they ship must learn
it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from solo import drive, learn, seen_alike

from tmrl_like.agents import EnsembleCritic, SACAgent, SquashedGaussianActor
from tmrl_like.base.functional import partial
from tmrl_like.envs.robot import robot_env as robot
from tmrl_like.envs.robot.driver import RobotCommand, RobotState
from tmrl_like.envs.robot.physics import COMMAND, CYCLE_S, STATE, Arm, ArmOptions
from tmrl_like.replay import ReplayMemory

TIME_STEP_S, EPISODE_STEPS, ACTIONS = 0.05, 60, 2


class ClocklessArm:
    """The arm's driver, and its time: it moves while somebody sleeps, and nobody waits for that."""

    def __init__(self, seed: int) -> None:
        self._now_s = 0.0
        self.arm = Arm(ArmOptions(seed=seed), 0.0)
        self._newest = b""
        self.sleep(0.1)

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        for _ in range(round(duration_s / CYCLE_S)):
            self._newest = self.arm.cycle(self._now_s) or self._newest
            self._now_s += CYCLE_S

    def connect(self) -> None: ...

    def close(self) -> None: ...

    def read_state(self) -> RobotState:
        cycle, time_s, *numbers, is_stopped = STATE.unpack(self._newest)
        return RobotState(cycle, time_s, tuple(numbers[:2]), tuple(numbers[2:]), is_stopped)

    def send_command(self, command: RobotCommand) -> None:
        self.arm.receive(self._now_s, COMMAND.pack(False, *command.velocity_rad_s))


class ClocklessRobotEnv(gymnasium.Env[Any, Any]):
    """`RobotEnv` as rtgym runs it, at once: an action that is chosen in one time-step acts in the
    next.
    """

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = ClocklessArm(seed)
        monkeypatch.setattr(robot, "time", self.time)
        self._interface = robot.RobotInterface(self.time)
        self._interface.random = np.random.default_rng(seed)
        self.action_space = self._interface.get_action_space()
        inner = self._interface.get_observation_space().spaces
        self.observation_space = spaces.Tuple((*inner, *(self.action_space,) * ACTIONS))
        self.default_action = self._interface.get_default_action()
        self.act_buf_len = ACTIONS

    def reset(self, **options: Any) -> Any:
        self._steps = 0
        self._actions = deque([self.default_action] * ACTIONS, maxlen=ACTIONS)
        obs, info = self._interface.reset()
        self._run_time_step(self.default_action)
        return (*obs, *self._actions), info

    def step(self, action: Any) -> Any:
        self._steps += 1
        self._actions.append(action)
        obs, rew, terminated, info = self._result
        truncated = not terminated and self._steps >= EPISODE_STEPS
        if terminated or truncated:
            self._interface.wait()
        else:
            self._run_time_step(action)
        return (*obs, *self._actions), rew, terminated, truncated, info

    def render(self) -> Any:
        return self._interface.render()

    def _run_time_step(self, action: Any) -> None:
        self._interface.send_control(action)
        self.time.sleep(TIME_STEP_S)
        self._result = self._interface.get_obs_rew_terminated_info()


ARM_ACTOR = partial(SquashedGaussianActor, noise_beta=1.5, noise_steps=60, hidden_sizes=(64, 64))
ARM_MEMORY = partial(
    ReplayMemory,
    batch_size=128,
    act_buf_len=ACTIONS,
    obs_preprocessor=robot.TargetUpClose(),
    memory_size=10_000,
)


def arm_agent(*spaces: Any, **options: Any) -> SACAgent:
    """The agent of config/robot.yaml."""
    return SACAgent(
        *spaces,
        "cpu",
        actor_cls=ARM_ACTOR,
        critic_cls=partial(EnsembleCritic, layer_norm=False),
        gamma=0.9,
        polyak=0.98,
        lr_actor=1e-3,
        lr_critic=1e-3,
        lr_entropy=2e-3,
        entropy_coef=0.1,
        **options,
    )


@pytest.mark.learn
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_the_arm_reaches_its_targets_after_a_minute(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    env, view = ClocklessRobotEnv(seed, monkeypatch), robot.TargetUpClose()
    agent = arm_agent(env.observation_space, env.action_space)
    memory = ARM_MEMORY(sample_preprocessor=robot.OtherTargets(seed))
    memory.seed(seed)
    changes = []

    def collect() -> list[Any]:
        samples, *_ = drive(env, agent.get_actor(), ACTIONS, False, view)
        changes.append(np.abs(np.diff([sample[0] for sample in samples[ACTIONS:]], axis=0)))
        return samples

    learn(agent, memory, collect, 1200, first_steps=40, ratio=20)
    # each with its clock, when its turn comes
    envs = (ClocklessRobotEnv(1000 + i, monkeypatch) for i in range(40))
    _, totals, reached, _ = zip(
        *[drive(one, agent.get_actor(), ACTIONS, True, view) for one in envs], strict=True
    )
    change = np.concatenate(changes).mean()
    print(
        f"seed {seed}: return {np.mean(totals):.2f}, reached {np.mean(reached):.0%}, change of "
        f"actions {change:.3f}"
    )
    assert change < 0.45  # with independent noise 0.56 and 0.66, seeds 2 and 1
    assert np.mean(reached) >= 0.95
    assert np.mean(totals) > -6.0


def test_the_view_of_the_target_is_the_same_for_arrays_and_batches() -> None:
    obs = tuple(
        np.array(v, np.float32)
        for v in ((0.1, -0.2), (1.0, -1.0), (0.5, 0.1), (0.3, -0.004), (2.0, 0.0))
    )
    alone = seen_alike(robot.TargetUpClose(), obs)
    assert alone[2] == pytest.approx([0.7 * 0.3 / 0.31**0.5, -0.7 * 0.004 / 0.014**0.5])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_another_target_comes_with_the_reward_and_the_end_that_belong_to_it(share: float) -> None:
    """Against the interface's own arithmetic, for each transition of a batch."""
    rng, interface = (
        np.random.default_rng(0),
        robot.RobotInterface(ClocklessArm.__new__(ClocklessArm)),
    )
    size = 200
    targets, places, last_places = (
        [rng.uniform(*np.transpose(robot.TARGETS_RAD)).astype(np.float32) for _ in range(size)]
        for _ in range(3)
    )
    targets_m = [robot.tip_m(target) for target in targets]

    def seen(place: Any, target_m: Any, speed: float) -> list[Any]:
        interface.target_m = target_m
        return interface.observe(RobotState(0, 0.0, tuple(place), (speed, 0.0), False))

    def batch(places: Any, speeds: Any) -> tuple[Any, ...]:
        rows = zip(*map(seen, places, targets_m, speeds), strict=True)
        return robot.TargetUpClose()(tuple(torch.from_numpy(np.stack(row)) for row in rows))

    speeds = rng.choice((0.0, 0.5), size)
    flags = torch.zeros(size)
    last_obs, _, rew, obs, terminated, _ = robot.OtherTargets(0, share)(
        batch(last_places, speeds),
        torch.zeros(size, 2),
        torch.full((size,), -9.0),
        batch(places, speeds),
        flags,
        flags,
    )
    close, given = 0, 0
    for i, place in enumerate(places):
        angle = sum(place)
        axes = np.array(((np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))))
        target_m = robot.tip_m(place) + axes @ obs[3][i].numpy()
        assert np.allclose(seen(last_places[i], target_m, 0.0)[3], last_obs[3][i], atol=1e-6)
        distance = np.linalg.norm(target_m - robot.tip_m(place))
        assert rew[i] == pytest.approx(
            -9.0 if share == 0.0 else -distance - robot.STEP_COSTS, abs=1e-5
        )
        assert terminated[i] == float(
            share == 1.0 and distance < robot.REACHED_M and speeds[i] == 0.0
        )
        is_given = any(np.allclose(target_m, other, atol=1e-5) for other in targets_m)
        given += is_given
        close += not is_given and bool(distance < 0.15)  # five standard deviations
    assert given + close == size
    assert 0.4 * share * size <= close <= 0.6 * share * size
    assert torch.allclose(obs[2], 0.7 * obs[3] / (obs[3].abs() + 0.01) ** 0.5)


def test_what_is_learnt_without_a_clock_is_the_environment_that_ships(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("mujoco")
    env, real = ClocklessRobotEnv(0, monkeypatch), robot.RobotEnv()
    assert env.observation_space == real.observation_space
    assert env.action_space == real.action_space
    obs, _ = env.reset()
    for _ in range(EPISODE_STEPS):
        assert obs in env.observation_space
        obs, rew, terminated, truncated, _ = env.step(np.array((0.5, -0.5), np.float32))
        assert rew == pytest.approx(-robot.STEP_COSTS - np.linalg.norm(obs[3]))
        if terminated or truncated:
            break
    assert truncated
    assert obs[0] == pytest.approx((1.5, 0.2), abs=0.2)
    real.close()
