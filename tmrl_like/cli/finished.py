"""Whether a run has anything left to do, known before its parts are started."""

from __future__ import annotations

from tmrl_like.config.settings import Settings
from tmrl_like.trainer.checkpoint_file import read_head


def refuse_finished(settings: Settings) -> None:
    """Raise FinishedError where the run's checkpoint is that of a training that has come to its end."""
    section = settings.trainer
    if section.checkpoint and section.resume == "all":
        head = read_head(settings.paths.checkpoint)
        if head is not None:
            section.refuse_finished(head.epoch, head.elapsed_s)
