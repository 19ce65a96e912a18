"""Small helpers for writing your own agents and scripts."""

from tmrl_like.base.functional import cached_property, fitted, partial, prod

__all__ = ["cached_property", "fitted", "partial", "prod"]
