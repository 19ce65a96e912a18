"""A robot arm: `env` has the task, `driver` the robot's side of it, `physics` an arm that is
simulated.
"""

from tmrl_like.envs.robot.driver import RobotCommand, RobotDriver, RobotState, SimulatedArm
from tmrl_like.envs.robot.robot_env import (
    OtherTargets,
    RobotEnv,
    RobotInterface,
    TargetUpClose,
    tip_m,
)

__all__ = [
    "OtherTargets",
    "RobotCommand",
    "RobotDriver",
    "RobotEnv",
    "RobotInterface",
    "RobotState",
    "SimulatedArm",
    "TargetUpClose",
    "tip_m",
]
