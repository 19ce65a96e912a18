"""An experiment as data: what runs, with which numbers, on which server.

`load_experiment` (module `loading`) makes an `Experiment` from a YAML file; a script makes the same one by
calling the classes below. Nothing here reads a file or imports another part of the package.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tmrl_like.config.paths import RunPaths, data_folder
from tmrl_like.errors import ConfigError, expect

Factory: TypeAlias = Callable[..., Any]
"""A class, a function or a `partial` of one: called later, by whoever has what is still missing."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class ServerSection:
    """Where the server is, and how it works.

    Attributes:
        host: address that workers and trainer dial.
        bind: local address that the server listens on; none: only this machine if `host` is this machine,
            else all addresses.
        port: TCP port of the server.
        transport: how bytes travel: zmq or tlspyo.
        keys_dir: folder with this machine's keys; none: the one in the data folder.
        min_samples_per_server_packet: the trainer receives nothing until that many samples wait.
        max_workers: one more is refused.
    """

    host: str = "127.0.0.1"
    bind: str | None = None
    port: int = 7790
    transport: Literal["zmq", "tlspyo"] = "zmq"
    keys_dir: str | None = None
    min_samples_per_server_packet: int = 1
    max_workers: int = 1000

    def __post_init__(self) -> None:
        expect(bool(self.host), "host", self.host, "an address or a name")
        expect(0 <= self.port <= 65535, "port", self.port, "0 to 65535")
        _at_least(self, 1, "min_samples_per_server_packet", "max_workers")

    @property
    def listens_on(self) -> str:
        """The local address that the server binds."""
        if self.bind is not None:
            return self.bind
        return "127.0.0.1" if _is_loopback(self.host) else "0.0.0.0"


@dataclass(frozen=True, kw_only=True)
class WorkerSection:
    """How a worker runs its environment.

    Attributes:
        device: where the actor computes.
        min_samples_per_worker_packet: no packet leaves with fewer samples.
        max_samples_per_episode: a longer episode is cut and counts as truncated.
        test_episode_interval: a test episode before every so many training episodes; 0: none.
        model_history: keep every k-th policy received; 0: none.
        hang_timeout_s: a step or reset of the environment that takes longer is a fault.
        own_thread: let the environment live in a thread of its own; false: in the main thread, which windows
            may need on macOS, and without a way out of a hang.
        max_policy_age_s: for how long after it was received a policy may drive; after that, and before there is
            any, `safe_action` drives. With .inf there is no limit, and the untrained actor explores.
        safe_action: drives instead of a policy that is too old or missing, and of an action that is not finite;
            none: the environment's default action.
        torch_threads: processor threads of the actor; one disturbs the control loop least.
        realtime_priority: of the real-time class, 1 to 99, for the thread that steps the environment; none: the
            ordinary class. Needs a permission; without it, the log says so, and the worker runs all the same.
        cpu_affinity: numbers of the processors for that thread, from 0; none: all.
        synchronous: collect no further than training keeps up; refused where the environment runs in real time.
        max_steps_per_update: with `synchronous`, environment steps per policy received; those of test episodes do not
            count.
        outbox_max_mb: samples kept in memory until the trainer has stored them, in MiB.
        spool: keep them on disk as well, in the run's folder, so that they outlive the worker.
        spool_max_mb: with `spool`, how much on disk, in MiB.
    """

    device: str = "cpu"
    min_samples_per_worker_packet: int = 1
    max_samples_per_episode: float = math.inf
    test_episode_interval: int = 10
    model_history: int = 0
    hang_timeout_s: float = 30.0
    own_thread: bool = True
    max_policy_age_s: float = math.inf
    safe_action: Any = None
    torch_threads: int = 1
    realtime_priority: int | None = None
    cpu_affinity: list[int] | None = None
    synchronous: bool = False
    max_steps_per_update: float = 200.0
    outbox_max_mb: int = 512
    spool: bool = False
    spool_max_mb: int = 2048

    def __post_init__(self) -> None:
        _at_least(self, 0, "test_episode_interval", "model_history")
        _at_least(self, 1, "min_samples_per_worker_packet", "max_samples_per_episode", "torch_threads")
        _at_least(self, 1, "outbox_max_mb", "spool_max_mb")
        fine = self.realtime_priority is None or 1 <= self.realtime_priority <= 99
        expect(fine, "realtime_priority", self.realtime_priority, "1 to 99, or none")
        _above_0(self, "hang_timeout_s", "max_policy_age_s", "max_steps_per_update")


@dataclass(frozen=True, kw_only=True)
class TrainerSection:
    """The schedule of the training, and what is kept of it.

    Attributes:
        epochs: a checkpoint is written after each; .inf trains for ever.
        rounds: rounds per epoch; metrics are shown after each.
        steps: training steps per round.
        max_minutes: end the training after that much time, whatever is left of the epochs; the time before a
            resumption counts.
        start_training: samples to receive before the first training step.
        update_model_interval: training steps between two publications of the policy.
        update_buffer_interval: training steps between two looks for new samples.
        max_training_steps_per_env_step: training pauses above this ratio, as soon as a worker has sent a sample.
        sleep_between_buffer_retrieval_attempts: longest wait for new samples at a time, in seconds.
        max_sample_age_s: samples that are older when they would enter the memory are dropped and counted.
        max_policy_lag_versions: samples whose policy is older by more than so many versions are dropped and counted.
        worker_stalled_after_s: after so long with one policy, while newer ones come, a worker is named in the log.
        device: where training computes; none: cuda where there is one, else cpu.
        torch_threads: processor threads for training; none: all cores but one.
        profiling: print a profile after each round.
        checkpoint: keep checkpoints in the run's folder.
        resume: what to take over from an earlier run of this name: all of it, its memory, or none.
        tensorboard: write metrics for TensorBoard into the run's folder.
        wandb: send metrics to Weights & Biases.
        wandb_entity: user or team there.
        wandb_project: project there.
        wandb_run_id: the same id continues a run; none: the name of the run.
        wandb_offline: keep what would be sent in the run's folder.
    """

    epochs: float = 10
    rounds: int = 50
    steps: int = 2000
    max_minutes: float = math.inf
    start_training: int = 0
    update_model_interval: int = 100
    update_buffer_interval: int = 100
    max_training_steps_per_env_step: float = 1.0
    sleep_between_buffer_retrieval_attempts: float = 1.0
    max_sample_age_s: float = math.inf
    max_policy_lag_versions: float = math.inf
    worker_stalled_after_s: float = 30.0
    device: str | None = None
    torch_threads: int | None = None
    profiling: bool = False
    checkpoint: bool = True
    resume: Literal["all", "memory", "none"] = "all"
    tensorboard: bool = False
    wandb: bool = False
    wandb_entity: str | None = None
    wandb_project: str = "tmrl_like"
    wandb_run_id: str | None = None
    wandb_offline: bool = False

    def __post_init__(self) -> None:
        _at_least(self, 1, "epochs", "rounds", "steps", "update_model_interval", "update_buffer_interval")
        _at_least(self, 0, "start_training")
        _above_0(self, "max_minutes", "max_training_steps_per_env_step", "sleep_between_buffer_retrieval_attempts")
        _above_0(self, "max_sample_age_s", "max_policy_lag_versions", "worker_stalled_after_s")
        if self.torch_threads is not None:
            _at_least(self, 1, "torch_threads")


@dataclass(frozen=True, kw_only=True)
class ProofSection:
    """What `run --proof` asks of the trained policy, compared with an untrained one.

    Attributes:
        episodes: test episodes of each.
        margin: by how many standard errors the mean return must be better.
        min_terminated_share: share of the trained policy's episodes that must reach a terminal state; where
            that is a failure, leave it at 0.
    """

    episodes: int = 20
    margin: float = 3.0
    min_terminated_share: float = 0.0

    def __post_init__(self) -> None:
        _at_least(self, 2, "episodes")
        _at_least(self, 0, "margin")
        expect(
            0 <= self.min_terminated_share <= 1, "min_terminated_share", self.min_terminated_share, "a share, 0 to 1"
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The plain values of an experiment: all that can be known without importing the code that it names.

    Attributes:
        run_name: name of the run; names its folder, runs/RUN_NAME in the data folder.
        crc_debug: compare every rebuilt transition with the original, bit for bit; slow.
        seed: seed of the random generators; none: a different one each time.
        server: see `ServerSection`.
        worker: see `WorkerSection`.
        trainer: see `TrainerSection`.
        proof: see `ProofSection`.
    """

    run_name: str = "default_run"
    crc_debug: bool = False
    seed: int | None = None
    server: ServerSection = field(default_factory=ServerSection)
    worker: WorkerSection = field(default_factory=WorkerSection)
    trainer: TrainerSection = field(default_factory=TrainerSection)
    proof: ProofSection = field(default_factory=ProofSection)

    def __post_init__(self) -> None:
        fine = bool(_NAME.fullmatch(self.run_name))
        expect(fine, "run_name", self.run_name, "letters, digits, '.', '_' and '-', at most 100")
        if self.worker.synchronous:
            _refuse_standstill(self.worker, self.trainer)

    @property
    def paths(self) -> RunPaths:
        """This run's files on this machine."""
        return RunPaths(self.run_name, data_folder())

    @property
    def keys_dir(self) -> Path | None:
        """Folder with this machine's keys; None: the default one."""
        return None if self.server.keys_dir is None else Path(self.server.keys_dir).expanduser()


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """Everything that server, workers and trainer of one experiment share.

    Attributes:
        env: makes the environment.
        actor: makes the policy from observation_space and action_space, on the workers and in the agent alike.
        agent: makes the learning algorithm from observation_space, action_space and device; one that takes an
            actor_cls is given `actor`.
        memory: makes the replay memory from nb_steps and device.
        sample_compressor: takes out of a sample, before sending, what the memory can rebuild; where a file does
            not name one, it is what the memory's class gives as its own.
        obs_preprocessor: applied to each observation right before the model, on the worker and in the memory.
        agent_scheduler: called as f(agent, epoch) at the start of each epoch.
        spaces: returns (observation_space, action_space), for a trainer's machine that cannot make the
            environment.
    """

    env: Factory
    actor: Factory
    agent: Factory
    memory: Factory
    sample_compressor: Factory | None = None
    obs_preprocessor: Factory | None = None
    agent_scheduler: Factory | None = None
    spaces: Factory | None = None


SECTIONS: dict[str, type] = {
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
    "spaces": (),
}
"""Keys of an experiment that name code, and the arguments that the framework supplies to each."""


def _refuse_standstill(worker: WorkerSection, trainer: TrainerSection) -> None:
    """Refuse numbers with which worker and trainer would end up waiting for each other.

    The trainer publishes every `update_model_interval` training steps, and a publication may be skipped
    when the next one is there already; twice as many environment steps leave room for that.
    """
    least = 2 * trainer.update_model_interval / trainer.max_training_steps_per_env_step
    if worker.max_steps_per_update < least:
        raise ConfigError(
            f"worker.max_steps_per_update is {worker.max_steps_per_update:g}; with trainer.update_model_interval "
            f"{trainer.update_model_interval} and trainer.max_training_steps_per_env_step "
            f"{trainer.max_training_steps_per_env_step:g} expected {least:g} or more, else both wait for each other"
        )
    for name in ("max_sample_age_s", "max_policy_lag_versions"):
        if getattr(trainer, name) < math.inf:
            raise ConfigError(
                f"trainer.{name} is {getattr(trainer, name):g}; with worker.synchronous expected .inf: a worker that "
                "waits for training must not have its samples dropped"
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _at_least(section: Any, least: float, *names: str) -> None:
    for name in names:
        expect(getattr(section, name) >= least, name, getattr(section, name), f"{least} or more")


def _above_0(section: Any, *names: str) -> None:
    for name in names:
        expect(getattr(section, name) > 0, name, getattr(section, name), "more than 0")
