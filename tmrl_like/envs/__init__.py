"""Environments: any Gymnasium environment, rtgym's with guards, and the drone of the tutorial."""

from tmrl_like.envs.generic import GenericGymEnv

__all__ = ["GenericGymEnv"]
