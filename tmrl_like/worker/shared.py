"""What a worker shares with its link: samples and policies, in files that both map."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.policies.intake import NumpyIntake, PolicyIntake, TorchIntake
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.policies.slots import PolicySlots


class Shared:
    """The worker's end of both.

    Attributes:
        worker: the worker's name.
        samples: where samples are appended.
        intake: where policies come from.
    """

    def __init__(
        self,
        spool: Path | None,
        name: str | None,
        actor: Any,
        make_actor: Callable[[], Any],
        probe: PolicyProbe,
        with_originals: bool,
        max_bytes: int,
    ) -> None:
        """Make the files.

        Args:
            spool: folder of folders of workers, where samples outlive both processes; None: they do not.
            name: the worker's; None: that of the first folder in the spool that no process uses, or a new one.
            actor: acts until there is a policy.
            make_actor: makes another one like it.
            probe: what a policy must have answers to.
            with_originals: samples have a seventh item (CRC debugging).
            max_bytes: of samples that the link has not read.

        Raises:
            ConfigError: the folder cannot be used.
        """
        with contextlib.ExitStack() as closing:
            folder = open_folder(spool, name)
            closing.callback(folder.close)
            self.worker = folder.worker
            memory = folder if folder.is_private else open_folder(None, self.worker)
            closing.callback(memory.close)
            self.samples = SampleLog(folder, with_originals, max_bytes)
            closing.callback(self.samples.close)
            is_numpy = actor.in_numpy() is actor
            slots = PolicySlots(memory.path, actor.manifest(), actor.network.input.size if is_numpy else 0)
            self.intake: PolicyIntake = (
                NumpyIntake(slots, probe, actor, lambda: make_actor().in_numpy())
                if is_numpy
                else TorchIntake(slots, probe, make_actor)
            )
            self.for_link = {
                "worker": self.worker,
                "incarnation": self.samples.incarnation,
                "samples": str(folder.path),
                "shared": str(memory.path),
                "actor": type(actor).__name__,
                "manifest": actor.manifest(),
                "network": actor.spec if is_numpy else None,
                "probes": b"".join(actor.flatten(obs).tobytes() for obs in probe.sampled) if is_numpy else b"",
                "input_size": slots.input.size,
            }
            self._closing = closing.pop_all()

    def close(self) -> None:
        """Leave the files to the link, or remove them if it has ended. Twice is fine."""
        self._closing.close()
