"""The schedule of a training run."""

from tmrl_like.trainer.schedule import TrainingOffline

__all__ = ["TrainingOffline"]
