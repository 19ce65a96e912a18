"""The schedule of a training run."""

from tmrl_like.trainer.schedule import StopTraining, TrainingOffline

__all__ = ["StopTraining", "TrainingOffline"]
