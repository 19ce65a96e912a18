"""The interface for learning algorithms."""

from tmrl_like.agents.agent import TrainingAgent

__all__ = ["TrainingAgent"]
