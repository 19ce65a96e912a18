"""The interface for replay memories."""

from tmrl_like.replay.contract import MemoryDataloading

__all__ = ["MemoryDataloading"]
