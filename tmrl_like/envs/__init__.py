"""Environments: wrappers for any Gymnasium environment, rtgym's included, and those that ship,
registered with Gymnasium.
"""

from tmrl_like.envs.action_table import ActionTable
from tmrl_like.envs.generic import GenericGymEnv
from tmrl_like.envs.registration import register_all
from tmrl_like.envs.residual import ResidualEnv
from tmrl_like.envs.success import SuccessEnv

__all__ = ["ActionTable", "GenericGymEnv", "ResidualEnv", "SuccessEnv"]

POLICY_PARTS = True  # a policy file may name classes of this package

register_all()
