"""Environments: any Gymnasium environment, rtgym's among them, and those that ship."""

from tmrl_like.envs.action_table import ActionTable
from tmrl_like.envs.generic import GenericGymEnv

__all__ = ["ActionTable", "GenericGymEnv"]
