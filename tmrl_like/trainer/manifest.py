"""What a checkpoint folder holds, in a small file that is read without torch."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from tmrl_like.base.checked import read_checked
from tmrl_like.errors import CheckpointError

log = logging.getLogger("tmrl_like.trainer")

FORMAT = 11
MANIFEST = "manifest.json"
BEFORE = "manifest-before.json"
"""The manifest before, in case the other one is damaged."""


class Manifest(msgspec.Struct):
    """What a checkpoint folder holds.

    Attributes:
        format: of the folder.
        number: counts checkpoints; 0: the first one is not complete yet.
        training: file of the agent's state.
        training_steps: done when it was taken.
        run: which training it belongs to; samples of another one are not joined with its agent.
        checksum: CRC-32 of the agent's file.
        epoch: how many the training had done.
        elapsed_s: and for how long it had gone on.
        previous: the checkpoint of this training before, in case this one is damaged.
    """

    format: int
    number: int
    training: str = ""
    training_steps: int = 0
    run: str = ""
    checksum: int = 0
    epoch: int = 0
    elapsed_s: float = 0.0
    previous: Manifest | None = None


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of a checkpoint folder; None: there is no complete checkpoint in it.

    Where it is damaged, that of the checkpoint before is taken.

    Raises:
        CheckpointError: it cannot be read, or it is missing beside training files.
    """
    try:
        manifest = read_checked((path / MANIFEST).read_bytes(), Manifest)
    except FileNotFoundError:
        if files := sorted(path.glob("training-*.pt"), key=lambda file: file.stat().st_mtime):
            raise CheckpointError(
                f"{path / MANIFEST} is missing, but {files[-1].name} is there: put it back, or move the folder "
                "away to start from nothing"
            ) from None
        return None
    except (OSError, ValueError) as error:
        try:
            manifest = read_checked((path / BEFORE).read_bytes(), Manifest)
        except (OSError, ValueError):
            raise CheckpointError(
                f"{path} is not a checkpoint that can be read ({error}); move it away to start over"
            ) from None
        log.warning("%s is damaged (%s): going on from checkpoint %d", path / MANIFEST, error, manifest.number)
    if manifest.format != FORMAT:
        raise CheckpointError(
            f"the checkpoint in {path} has format {manifest.format}, and this tmrl_like reads {FORMAT}: go on with the "
            "version that wrote it, or start over (run --fresh, or another --run_name)"
        )
    return manifest if manifest.number else None
