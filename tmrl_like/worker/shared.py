"""What a worker shares with its link: samples and policies, in files that both map."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tmrl_like.config.config_constants as cfg
from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.errors import ConfigError
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.worker.intake import NumpyIntake, PolicyIntake, TorchIntake
from tmrl_like.worker.slots import PolicySlots


class Shared:
    """The worker's end of both.

    Attributes:
        worker: the worker's name.
        samples: where each lane appends its samples.
        intakes: where policies come from, for each lane.
        for_link: what of its `Setup` a link learns here.
    """

    def __init__(
        self,
        spool: bool | str | Path,
        name: str | None,
        outbox: OutboxOptions,
        actors: Sequence[Any],
        make_actor: Callable[[], Any],
        probe: PolicyProbe,
    ) -> None:
        """Make the files.

        Args:
            spool: folder of folders of workers, where samples outlive both processes; True: the run's; False: none.
            name: the worker's; None: that of the first folder in the spool that no process uses, or a new one.
            outbox: how much of the samples is kept.
            actors: of each lane, which act until there is a policy.
            make_actor: makes another one like them.
            probe: what a policy must have answers to.

        Raises:
            ConfigError: the folder cannot be used.
        """
        place = cfg.RUN_FOLDER / "spool" if spool is True else Path(spool) if spool else None
        actor, lanes = actors[0], len(actors)
        is_numpy = actor.in_numpy() is actor
        with contextlib.ExitStack() as closing:
            folder = open_folder(place, name)
            closing.callback(folder.close)
            memory = folder if folder.is_private else open_folder(None, folder.worker)
            closing.callback(memory.close)
            self.worker = folder.worker
            room_bytes = outbox.kept_bytes(folder.is_private) * 5 // 4  # the link drops the oldest before that
            self.samples: list[SampleLog] = []
            for _ in range(lanes):
                self.samples.append(SampleLog(folder, room_bytes // lanes))
                closing.callback(self.samples[-1].close)
            size = actor.network.input.size if is_numpy else 0
            try:
                slots = PolicySlots(memory.path, actor.manifest(), size, lanes)
            except OSError as error:
                raise ConfigError(
                    f"cannot keep policies in this machine's shared memory, {memory.path.parent}: {error.strerror}; "
                    "make room"
                ) from None
            self.intakes: list[PolicyIntake] = [
                NumpyIntake(slots, probe, own, make_actor, lane)
                if is_numpy
                else TorchIntake(slots, probe, make_actor, lane)
                for lane, own in enumerate(actors)
            ]
            self.for_link: dict[str, Any] = {
                "worker": folder.worker,
                "outbox": outbox,
                "folder": str(folder.path),
                "incarnations": [samples.incarnation for samples in self.samples],
                "shared": str(memory.path),
                "actor": type(actor).__name__,
                "manifest": actor.manifest(),
                "network": actor.spec if is_numpy else None,
                "probes": b"".join(actor.flatten(obs).tobytes() for obs in probe.sampled) if is_numpy else b"",
                "input_size": size,
            }
            self._closing = closing.pop_all()

    def close(self) -> None:
        """Leave the files to the link, or remove them if it has ended. Twice is fine."""
        self._closing.close()
