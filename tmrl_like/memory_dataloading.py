"""The seam for memories."""

from tmrl_like.replay.contract import MemoryDataloading

__all__ = ["MemoryDataloading"]
