"""What a worker shares with its link: samples and policies, in files that both map."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.errors import ConfigError
from tmrl_like.policies.intake import NumpyIntake, PolicyIntake, TorchIntake
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.policies.slots import PolicySlots


class Shared:
    """The worker's end of both.

    Attributes:
        worker: the worker's name.
        samples: where each lane appends its samples.
        intakes: where policies come from, for each lane.
    """

    def __init__(
        self,
        spool: Path | None,
        name: str | None,
        actors: Sequence[Any],
        make_actor: Callable[[], Any],
        probe: PolicyProbe,
        outbox: OutboxOptions,
    ) -> None:
        """Make the files.

        Args:
            spool: folder of folders of workers, where samples outlive both processes; None: they do not.
            name: the worker's; None: that of the first folder in the spool that no process uses, or a new one.
            actors: of each lane, which act until there is a policy.
            make_actor: makes another one like them.
            probe: what a policy must have answers to.
            outbox: how much of the samples is kept.

        Raises:
            ConfigError: the folder cannot be used.
        """
        with contextlib.ExitStack() as closing:
            folder = open_folder(spool, name)
            closing.callback(folder.close)
            self.worker = folder.worker
            memory = folder if folder.is_private else open_folder(None, self.worker)
            closing.callback(memory.close)
            room_bytes = outbox.kept_bytes(folder.is_private) * 5 // 4  # the link drops the oldest before that
            self.samples: list[SampleLog] = []
            for _ in actors:
                self.samples.append(SampleLog(folder, room_bytes // len(actors)))
                closing.callback(self.samples[-1].close)
            first = actors[0]
            is_numpy = first.in_numpy() is first
            size = first.network.input.size if is_numpy else 0
            try:
                slots = PolicySlots(memory.path, first.manifest(), size, len(actors))
            except OSError as error:
                raise ConfigError(
                    f"cannot keep policies in this machine's shared memory, {memory.path.parent}: {error.strerror}; "
                    "make room"
                ) from None
            self.intakes: list[PolicyIntake] = [
                NumpyIntake(slots, probe, actor, make_actor, lane)
                if is_numpy
                else TorchIntake(slots, probe, make_actor, lane)
                for lane, actor in enumerate(actors)
            ]
            self.for_link = {
                "worker": self.worker,
                "folder": str(folder.path),
                "incarnations": [samples.incarnation for samples in self.samples],
                "shared": str(memory.path),
                "actor": type(first).__name__,
                "manifest": first.manifest(),
                "network": first.spec if is_numpy else None,
                "probes": b"".join(first.flatten(obs).tobytes() for obs in probe.sampled) if is_numpy else b"",
                "input_size": slots.input.size,
            }
            self._closing = closing.pop_all()

    def close(self) -> None:
        """Leave the files to the link, or remove them if it has ended. Twice is fine."""
        self._closing.close()
