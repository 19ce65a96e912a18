"""Rollouts: episodes as aligned columns, and the thread that passes them to hooks."""

from tmrl_like.rollouts.rollout import Rollout

__all__ = ["Rollout"]
