"""Small helpers that users' agents and scripts are written with."""

from tmrl_like.base.functional import cached_property, fitted, partial, prod

__all__ = ["cached_property", "fitted", "partial", "prod"]
