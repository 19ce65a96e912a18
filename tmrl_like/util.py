"""Small helpers that users' agents and scripts are written with."""

from tmrl_like.base.functional import cached_property, fitted, partial, prod
from tmrl_like.base.schedules import ValueSchedule

__all__ = ["ValueSchedule", "cached_property", "fitted", "partial", "prod"]
