"""Connects a training with its workers: over a server, over an engine, without any, or by a
script's own interface.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import tmrl_like.config.config_constants as cfg
from tmrl_like.delivery.folder import name_of_peer
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.engine.options import EngineOptions
from tmrl_like.errors import ConfigError
from tmrl_like.trainer.checkpoints import flush_what_fits
from tmrl_like.trainer.interface import TrainerInterface
from tmrl_like.trainer.sample_ages import FreshnessLimits
from tmrl_like.trainer.saver import Saver
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.trainer_link import TrainerLink
from tmrl_like.transport import KeyFolder, PeerLink, TransportOptions, server_address
from tmrl_like.transport import connect as dial
from tmrl_like.wire.messages import Rank
from tmrl_like.wire.spaces import describe_spaces


@dataclass(frozen=True)
class LinkParts:
    """The objects that a connection works with.

    Attributes:
        training: the training to connect.
        receiver: tracks the workers' samples.
        saver: keeps policies; None: they are not kept.
        newest_version: of the policy that an earlier process of this training published last; 0:
            none.
    """

    training: TrainingOffline
    receiver: Receiver
    saver: Saver | None
    newest_version: int

    @property
    def freshness(self) -> FreshnessLimits:
        """New limits that keep samples that are too old out of the memory."""
        return FreshnessLimits(
            self.training.max_sample_age_s, self.training.max_policy_lag_versions
        )

    def over(self, link: PeerLink, name: str | None) -> TrainerLink:
        """Make the trainer's connection over `link`, which leads to a server or to an engine."""
        training = self.training
        ranks = training.ranks
        try:
            return TrainerLink(
                link,
                name_of_peer(name),
                describe_spaces(training.observation_space, training.action_space),
                self.receiver,
                self.freshness,
                self.saver,
                self.newest_version,
                Rank(ranks.rank, ranks.size, ranks.group),
            )
        except BaseException:
            link.close()
            raise


Connect: TypeAlias = Callable[[LinkParts], TrainerInterface]


def how_to_connect(
    connect: Connect | EngineOptions | None,
    server_ip: str | None,
    server_port: int | None = None,
    transport: str = "zmq",
    keys_dir: str | Path | None = None,
    name: str | None = None,
    limits: TransportOptions | None = None,
) -> Connect:
    """Return what makes the connection, from a trainer's arguments.

    Raises:
        ConfigError: the server's address is malformed.
    """
    if isinstance(connect, EngineOptions):
        return lambda parts: _over_engine(connect, parts, name)
    if connect is not None:
        return connect
    port = cfg.PORT if server_port is None else server_port
    address = server_address(server_ip or cfg.SERVER_IP_FOR_TRAINER, port)
    keys = KeyFolder(Path(keys_dir or cfg.KEYS_FOLDER))
    return lambda parts: parts.over(dial(transport, *address, keys, limits), name)


def _over_engine(engine: EngineOptions, parts: LinkParts, name: str | None) -> TrainerLink:
    from tmrl_like.engine.reader import Reader

    size = parts.training.ranks.size
    if size > 1:
        raise ConfigError(
            f"an engine passes samples to one trainer, and there are {size}: start one alone, or "
            "connect all of them to a server (without server.engine)"
        )
    return parts.over(Reader(engine), name)


def _with_no_worker(parts: LinkParts) -> TrainerInterface:
    expect_no_worker(parts.training)
    return TrainerInterface(parts.saver, parts.newest_version)


OFFLINE: Connect = _with_no_worker
"""`Trainer(connect=OFFLINE)` trains from the samples that the memory holds: it connects to nothing,
and training is not paced.
"""


def expect_no_worker(training: TrainingOffline) -> None:
    """Let training use the samples in its memory, without a limit on training steps per sample.

    Raises:
        ConfigError: it would wait for samples that never come.
    """
    flush_what_fits(training.memory)
    if training.ranks.sum(training.memory.ready) != [training.ranks.size]:
        raise ConfigError(
            "the memory holds no transition, and offline no worker sends any: name a data set "
            "(dataset_path of the memory), or go on with a run that has recorded samples"
        )
    if training.start_training > training.total_samples:
        raise ConfigError(
            f"start_training is {training.start_training}, and only {training.total_samples} "
            "samples count offline (of a data set, its transitions): expected at most as many"
        )
    training.pacer.expect_no_worker(training.total_samples)
