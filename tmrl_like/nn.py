"""Helpers on torch modules, for writing your own agents."""

from tmrl_like.agents.sharing import copy_shared, no_grad

__all__ = ["copy_shared", "no_grad"]
