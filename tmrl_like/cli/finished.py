"""Whether a run has anything left to do, known before its parts are started."""

from __future__ import annotations

from tmrl_like.config.experiment import Settings
from tmrl_like.trainer.manifest import read_manifest


def refuse_finished(settings: Settings) -> None:
    """Raise FinishedError where the run's checkpoint is that of a training that has come to its end."""
    section = settings.trainer
    if section.checkpoint and section.resume == "all":
        manifest = read_manifest(settings.paths.checkpoint)
        if manifest is not None:
            section.refuse_finished(manifest.epoch, manifest.elapsed_s)
