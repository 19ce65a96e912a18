"""Helpers on torch modules that users' agents are written with."""

from tmrl_like.agents.sharing import copy_shared, no_grad

__all__ = ["copy_shared", "no_grad"]
