"""The interface for policies."""

from tmrl_like.policies.actor import ActorModule, fit_action, to_batch_of_one

__all__ = ["ActorModule", "fit_action", "to_batch_of_one"]
