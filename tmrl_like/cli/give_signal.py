"""`tmrl-like signal`: passes what a person says to the workers of a run that read no keyboard."""

from __future__ import annotations

from tmrl_like.cli.arguments import Arguments
from tmrl_like.config.paths import RunPaths
from tmrl_like.config.run_lock import LISTENS, is_in_use
from tmrl_like.errors import TmrlLikeError
from tmrl_like.worker.options import to_said


def main(arguments: Arguments) -> int:
    """Append the signal to the file that the workers read."""
    said, paths = to_said(arguments.said), RunPaths.of(arguments.found.folder())
    if not is_in_use(paths, LISTENS):
        raise TmrlLikeError(
            f"no worker of the run {paths.run_name} on this machine listens to a person: start one "
            "whose experiment says worker: {person: {watches: true}}"
        )
    with paths.signals.open("a", encoding="utf-8") as lines:
        lines.write(f"{said}\n")
    return 0
