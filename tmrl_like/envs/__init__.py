"""Environments: wrappers for any Gymnasium environment, rtgym's included, and those that ship."""

from tmrl_like.envs.generic import GenericGymEnv
from tmrl_like.envs.residual import ResidualEnv
from tmrl_like.envs.success import SuccessEnv

__all__ = ["GenericGymEnv", "ResidualEnv", "SuccessEnv"]

POLICY_PARTS = ("drone.TargetInView", "robot.TargetUpClose")
"""What every policy file may name of this package: classes that only compute, whatever the
arguments. Environments are not among them, since their arguments name code to run."""
