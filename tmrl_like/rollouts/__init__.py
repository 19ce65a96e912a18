"""Rollouts: an episode as aligned columns, and what hands it to whoever asked for it."""

from tmrl_like.rollouts.rollout import Rollout

__all__ = ["Rollout"]
