"""Environments that ship, in simulated time, which advances only while the loop waits. That equals
real time with a trainer that is always fast enough.
"""

import dataclasses
from unittest import mock

import numpy as np
from kit.simulated_time import Simulated
from simulated_drone import SimulatedDroneEnv

from tmrl_like import load_experiment, partial
from tmrl_like.base.factories import said_to_memory
from tmrl_like.envs.carla import CarlaSyncEnv
from tmrl_like.envs.doom import VizDoomEnv
from tmrl_like.envs.doom.doom_env import TIC_S
from tmrl_like.envs.racing import RacingEnv
from tmrl_like.envs.racing import racing_env as racing
from tmrl_like.envs.racing.racing_game import TICK_S, Simulation
from tmrl_like.envs.real_time import also_takes
from tmrl_like.envs.robot import RobotEnv
from tmrl_like.envs.robot import robot_env as robot
from tmrl_like.envs.robot.driver import state_of
from tmrl_like.envs.robot.physics import COMMAND, CYCLE_S, Arm, ArmOptions


class Drone(SimulatedDroneEnv):
    """`DroneEnv` in simulated time."""

    memory_arguments = staticmethod(said_to_memory)

    def __init__(self, time_step_duration, ep_max_length, act_buf_len, reset_act_buf):
        super().__init__(None, ep_max_length, act_buf_len)


class SteppedArm:
    """The arm's driver and its simulated time: `sleep` moves the arm and returns at once."""

    def __init__(self, seed):
        self._now_s = 0.0
        self.arm = Arm(ArmOptions(seed=seed), 0.0)
        self._newest = b""
        self.sleep(0.1)

    def monotonic(self):
        return self._now_s

    def sleep(self, duration_s):
        for _ in range(round(duration_s / CYCLE_S)):
            self._newest = self.arm.cycle(self._now_s) or self._newest
            self._now_s += CYCLE_S

    def connect(self): ...

    def close(self): ...

    def read_state(self):
        return state_of(self._newest)

    def send_command(self, command):
        self.arm.receive(self._now_s, COMMAND.pack(False, *command.velocity_rad_s))


class Robot(Simulated):
    """`RobotEnv` in simulated time."""

    memory_arguments = staticmethod(said_to_memory)

    def __init__(
        self,
        driver=None,
        time_step_duration=0.05,
        ep_max_length=60,
        act_buf_len=2,
        seed=0,
    ):
        """`seed` determines the arm's noise and its targets."""
        self.world = SteppedArm(seed)
        arguments = time_step_duration, ep_max_length, act_buf_len
        super().__init__(lambda: RobotEnv(lambda: self.world, *arguments), self.world)
        self._env.unwrapped.interface.random = np.random.default_rng(seed)

    def reset(self, *, seed=None, options=None):
        with mock.patch.object(robot, "time", self.world):  # while the arm moves home
            return super().reset(seed=seed, options=options)

    def render(self):
        return self._env.render()


class SteppedRace:
    """The racing game with the interface of `RacingGame`, and its simulated time."""

    def __init__(self, track):
        self._game, self._now_s, self._controls = Simulation(track), 0.0, (0.0, 0.0, 0.0)

    def monotonic(self):
        return self._now_s

    def sleep(self, duration_s):
        self._now_s += duration_s
        self.advance(round(duration_s / TICK_S))

    def advance(self, ticks):
        for _ in range(ticks):
            self._game.tick(*self._controls)

    def drive(self, *controls):
        self._controls = controls

    def look(self):
        return self._game.state

    def restart(self):
        self.drive(0.0, 0.0, 0.0)
        self._game.restart()

    def close(self): ...


class Racing(Simulated):
    """`RacingEnv` in simulated time."""

    game_cls = SteppedRace
    memory_arguments = staticmethod(RacingEnv.memory_arguments)

    @also_takes(RacingEnv)
    def __init__(self, **arguments):
        self.world = self.game_cls(arguments["track"])
        super().__init__(lambda: RacingEnv(**arguments), self.world)

    def reset(self, *, seed=None, options=None):
        with mock.patch.object(racing, "RacingGame", return_value=self.world):
            return super().reset(seed=seed, options=options)


class WaitingGame:
    """A game of Doom whose engine waits for the player, and its simulated time."""

    def __init__(self):
        self._game, self._tics = None, 0

    def play(self, game):
        import vizdoom

        game.close()
        game.set_mode(vizdoom.Mode.PLAYER)
        game.init()
        self._game = game

    def __getattr__(self, name):
        return getattr(self._game, name)

    def monotonic(self):
        return self._tics * TIC_S

    def sleep(self, duration_s):
        if tics := round(duration_s / TIC_S):
            self.advance_action(tics)

    def advance_action(self, tics=1, update_state=True):
        self._tics += tics
        if not self._game.is_episode_finished():
            self._game.advance_action(tics, update_state)


class Doom(Simulated):
    """`VizDoomEnv` in simulated time."""

    memory_arguments = staticmethod(VizDoomEnv.memory_arguments)

    @also_takes(VizDoomEnv)
    def __init__(self, **arguments):
        game = WaitingGame()
        super().__init__(lambda: VizDoomEnv(**arguments), game)
        interface = self._env.unwrapped.interface
        game.play(interface.game)
        interface.game = game


class Carla(CarlaSyncEnv):
    """`CarlaSyncEnv`, with the arguments of `CarlaEnv`."""

    def __init__(self, time_step_duration, **arguments):
        super().__init__(time_step_duration, **arguments)


ENVIRONMENTS = {"drone": Drone, "robot": Robot, "vizdoom": Doom, "carla": Carla, "racing": Racing}


def simulated(name, overrides="", env_cls=None):
    """Return an experiment that ships, in simulated time.

    Args:
        name: its name; one that stands still (`pendulum`) stays as it is.
        overrides: "key=value key=value …"
        env_cls: the class of its environment, if it is none of this module.
    """
    changes = (change.split("=", 1) for change in overrides.split())
    experiment = load_experiment(name, [(tuple(key.split(".")), value) for key, value in changes])
    if env_cls := env_cls or ENVIRONMENTS.get(name.partition("_")[0]):
        env = partial(env_cls, **experiment.env.keywords)
        return dataclasses.replace(experiment, env=env)
    return experiment
