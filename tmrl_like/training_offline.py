"""The schedule of a training."""

from tmrl_like.trainer.schedule import StopTraining, TrainingOffline

__all__ = ["StopTraining", "TrainingOffline"]
