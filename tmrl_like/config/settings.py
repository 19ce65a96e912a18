"""The plain values of an experiment: its numbers and its server.

Nothing here reads a file, and from other packages only their option classes are imported.
"""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from tmrl_like.base.folders import data_folder
from tmrl_like.base.options import Natural, NotNegative, Options, Port, Positive
from tmrl_like.config.paths import RunPaths, keys_folder
from tmrl_like.engine.options import AtLeastMiB, EngineOptions
from tmrl_like.errors import ConfigError, expect
from tmrl_like.server.options import ServerOptions
from tmrl_like.trainer.options import Schedule, TrainerOptions
from tmrl_like.transport import KeyFolder, PeerLink, connect
from tmrl_like.transport.addresses import host_and_port, is_address, server_address
from tmrl_like.transport.base import TransportOptions
from tmrl_like.worker.options import WorkerOptions

NAME_OF_RUN = re.compile(  # a folder that can be moved to Windows
    r"(?!(?i:con|prn|aux|nul|(com|lpt)\d)(\.|$))[A-Za-z0-9][A-Za-z0-9._-]{0,99}(?<!\.)"
)


@dataclass(frozen=True, kw_only=True)
class ServerSection(ServerOptions):
    """Where the server is, and how it works.

    Attributes:
        host: address that workers and trainer connect to, perhaps with its port, a.example:7791.
        bind: local address that the server listens on; none: only this machine if `host` is this
            machine, else all addresses.
        port: TCP port that the server listens on, and of a host that names none.
        transport: how bytes travel: zmq or tlspyo.
        keys_dir: folder with this machine's keys; none: the one in the data folder.
        engine: addresses of an engine's nodes, separated by commas: the server passes samples to
            the engine, and the trainer takes them from there; none: they go straight to the
            trainer.
        engine_credentials: file (.creds) with which this machine's server or trainer authenticates
            to the engine; none: the engine's nodes do not ask for any.
        engine_ca: certificate, in PEM, that signed those of the engine's nodes; none: this machine
            trusts them anyway.
        engine_max_bytes: most bytes that the engine keeps for the trainer; what exceeds this stays
            with the workers.
        limits: of the transport.
    """

    host: str = "127.0.0.1"
    bind: str | None = None
    port: Port = 7790
    transport: Literal["zmq", "tlspyo"] = "zmq"
    keys_dir: str | None = None
    engine: str | None = None
    engine_credentials: str | None = None
    engine_ca: str | None = None
    engine_max_bytes: AtLeastMiB = EngineOptions.max_bytes
    limits: TransportOptions = field(default_factory=TransportOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        server_address(self.host, self.port)
        self.engine_options("-")

    @property
    def listens_on(self) -> str:
        """The local address that the server binds."""
        if self.bind is not None:
            return self.bind
        host, _ = host_and_port(self.host)
        if is_loopback(host):
            return "127.0.0.1" if host == "localhost" else host
        return "::" if ":" in host else "0.0.0.0"

    @property
    def connection(self) -> dict[str, Any]:
        """The connection arguments that server, workers and trainer share."""
        keys_dir = None if self.keys_dir is None else Path(self.keys_dir).expanduser()
        return {"transport": self.transport, "keys_dir": keys_dir, "limits": self.limits}

    @property
    def dialled(self) -> dict[str, Any]:
        """The connection arguments that workers and trainer share."""
        return self.connection | {"server_ip": self.host, "server_port": self.port}

    @property
    def keys(self) -> KeyFolder:
        """The folder with this machine's keys."""
        return KeyFolder(keys_folder(self.keys_dir))

    def dial(self) -> PeerLink:
        """Open this machine's side of a link to the server. Raises what `connect` does."""
        address = server_address(self.host, self.port)
        return connect(self.transport, *address, self.keys, self.limits)

    def engine_options(self, run: str) -> EngineOptions | None:
        """Return the engine's options for a run, or None if there is no engine."""
        if self.engine is None:
            return None
        return EngineOptions(
            nodes=tuple(self.engine.split(",")),
            run=run,
            max_bytes=self.engine_max_bytes,
            credentials=self.engine_credentials,
            ca=self.engine_ca,
        )


@dataclass(frozen=True, kw_only=True)
class WorkerSection(WorkerOptions):
    """How a worker runs its environment, and how the command `worker` runs the worker.

    Attributes:
        test_episode_interval: a test episode before every k-th training episode; 0: none.
        keep_best: keep the best run that this machine's workers drive.
        torch_threads: processor threads of the actor; one disturbs the control loop least.
        synchronous: collect in lockstep with training: each environment step allows
            `trainer.max_training_steps_per_env_step` training steps, and each environment waits for
            those of its step before the last; refused if the environment runs in real time.
    """

    test_episode_interval: Natural = 10
    keep_best: bool = True
    torch_threads: Positive = 1
    synchronous: bool = False


@dataclass(kw_only=True)
class TrainerSection(TrainerOptions, Schedule):
    """The schedule of the training, how it is run, and what is kept of it.

    Attributes:
        torch_threads: processor threads for training; none: all cores of this trainer's share of
            the machine but one.
        checkpoint: keep checkpoints, and the samples as they arrive, in the run's folder.
        tensorboard: write metrics for TensorBoard into the run's folder.
        wandb: send metrics to Weights & Biases; with WANDB_MODE=offline they stay in the run's
            folder.
        wandb_entity: user or team at Weights & Biases.
        wandb_project: project at Weights & Biases.
        wandb_run_id: id of the run at Weights & Biases; the same id continues a run; none: the name
            of the run.
    """

    torch_threads: Positive | None = None
    checkpoint: bool = True
    tensorboard: bool = False
    wandb: bool = False
    wandb_entity: str | None = None
    wandb_project: str = "tmrl_like"
    wandb_run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProofSection(Options):
    """What `run --proof` requires of the trained policy, compared with an untrained one.

    Attributes:
        episodes: test episodes with each of the two policies.
        margin: by how many standard errors the mean return must be better.
        min_terminated_share: share of the trained policy's episodes that must reach a terminal
            state; leave it at 0 if a terminal state is a failure.
    """

    episodes: Annotated[int, Meta(ge=2)] = 20
    margin: NotNegative = 3.0
    min_terminated_share: Annotated[float, Meta(ge=0, le=1)] = 0.0


@dataclass(frozen=True, kw_only=True)
class Settings(Options):
    """The plain values of an experiment: everything that is known without importing the code that
    it names.

    Attributes:
        run_name: name of the run; names its folder, runs/RUN_NAME in the data folder.
        crc_debug: compare every rebuilt transition with the original, bit for bit; slow.
        seed: seed of the random generators, below 2**32; none: a different one each time.
        server: see `ServerSection`.
        worker: see `WorkerSection`.
        trainer: see `TrainerSection`.
        proof: see `ProofSection`.
    """

    run_name: str = "default_run"
    crc_debug: bool = False
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    server: ServerSection = field(default_factory=ServerSection)
    worker: WorkerSection = field(default_factory=WorkerSection)
    trainer: TrainerSection = field(default_factory=TrainerSection)
    proof: ProofSection = field(default_factory=ProofSection)

    def __post_init__(self) -> None:
        super().__post_init__()
        fine = bool(NAME_OF_RUN.fullmatch(self.run_name))
        expected = (
            "letters, digits, '.', '_' and '-', at most 100, no '.' at the end, and no name that "
            "Windows reserves, such as CON"
        )
        expect(fine, "run_name", self.run_name, expected)
        ratio = self.trainer.max_training_steps_per_env_step
        is_bounded = self.trainer.sample_uses is not None
        if self.worker.synchronous and ratio == math.inf and not is_bounded:
            raise ConfigError(
                f"trainer.max_training_steps_per_env_step is {ratio}; with worker.synchronous "
                "expected a finite number"
            )

    @property
    def paths(self) -> RunPaths:
        """This run's files on this machine."""
        return RunPaths(self.run_name, data_folder())

    @property
    def engine(self) -> EngineOptions | None:
        """The options of the engine that this run's samples go through, or None if they go straight
        from the server to the trainer.
        """
        return self.server.engine_options(self.run_name)


SECTIONS: dict[str, type[Any]] = {
    "server": ServerSection,
    "worker": WorkerSection,
    "trainer": TrainerSection,
    "proof": ProofSection,
}
"""Keys of an experiment that are groups of plain values."""

PARTS: dict[str, tuple[str, ...]] = {
    "env": (),
    "actor": ("observation_space", "action_space"),
    "agent": ("observation_space", "action_space", "device", "actor_cls"),
    "memory": ("nb_steps", "device", "obs_preprocessor", "crc_debug"),
    "sample_compressor": (),
    "obs_preprocessor": (),
    "agent_scheduler": (),
    "on_worker_rollout": (),
    "takeover": ("action_space", "default_action"),
    "action_chain": (),
    "spaces": (),
}
"""Keys of an experiment that name code, and the arguments that the framework supplies to each."""


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's loopback, which no other machine can
    reach.
    """
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)
