"""An experiment: everything that server, workers and trainer of one training share, in one place.

A script creates it by calling `Experiment`, a file by `load_experiment`. For both, this module
derives what one part needs to know about another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import math
import os
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmrl_like.base.factories import Factory, completed, fitted, signature_of, taken_apart
from tmrl_like.base.functional import seed_generators
from tmrl_like.config.components import make_page, resolve_component
from tmrl_like.config.document import Document
from tmrl_like.config.loading import (
    TOP_LEVEL,
    Overrides,
    make_parts,
    open_experiment,
    settings_of,
    with_defaults,
    with_place,
)
from tmrl_like.config.settings import PARTS, SECTIONS, Settings
from tmrl_like.errors import ConfigError
from tmrl_like.trainer.options import Schedule

if TYPE_CHECKING:
    from tmrl_like.server.server import Server
    from tmrl_like.trainer.trainer import Trainer
    from tmrl_like.worker.worker import RolloutWorker


class OwnCompressor(enum.Enum):
    """Stands for a `sample_compressor` that was left out."""

    OF_MEMORY = "what the memory's class gives as its own"


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """Everything that server, workers and trainer of one experiment share, and the way to make
    each::

        experiment = Experiment(
            env=DroneEnv, actor=SquashedGaussianActor, agent=SACAgent, memory=ReplayMemory
        )
        with experiment.make_trainer() as trainer:
            trainer.run()

    A section (`server`, `worker`, `trainer`, `proof`) may be given as a mapping:
    `trainer={"epochs": 3}`. The files of a run are in the folder of its `run_name`. Arguments that
    one part can tell another are filled in: see `memory_cls`, `compressor` and `agent_cls`.

    Attributes:
        env: makes the environment.
        actor: makes the policy from observation_space and action_space, both on the workers and in
            the agent.
        agent: makes the learning algorithm from observation_space, action_space and device; if it
            takes an actor_cls, it is given `actor`.
        memory: makes the replay memory from nb_steps and device.
        sample_compressor: removes from a sample, before sending, what the memory can rebuild. If
            left out, the compressor that the memory's class provides; none: samples are sent whole.
        obs_preprocessor: applied to each observation right before the model, on the worker and in
            the memory.
        agent_scheduler: called as f(agent, epoch) at the start of each epoch.
        on_worker_rollout: called on a worker with each finished episode, as a `Rollout`.
        takeover: makes the driver that may take over a worker's first environment from the policy,
            given action_space and default_action: keys, a gamepad, a program.
        action_chain: makes the filters and limits that the actions of each environment pass
            through.
        spaces: returns (observation_space, action_space), for a trainer's machine that cannot make
            the environment.
        document: the file that it was read from, and where its values were written; left out in a
            script.
    """

    env: Factory
    actor: Factory
    agent: Factory
    memory: Factory
    sample_compressor: Factory | OwnCompressor | None = OwnCompressor.OF_MEMORY
    obs_preprocessor: Factory | None = None
    agent_scheduler: Factory | None = None
    on_worker_rollout: Factory | None = None
    takeover: Factory | None = None
    action_chain: Factory | None = None
    spaces: Factory | None = None
    document: Document = field(
        default_factory=lambda: Document("Experiment"), repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Check everything that can be checked without making anything.

        Raises:
            ConfigError: a section has no such key or value, or parts contradict each other.
        """
        for name, page in SECTIONS.items():
            given = getattr(self, name)
            if isinstance(given, Mapping):
                object.__setattr__(self, name, make_page(self.document, (name,), page, dict(given)))
        super().__post_init__()
        _ = self.memory_cls, self.compressor

    @functools.cached_property
    def memory_cls(self) -> Factory:
        """The factory of the memory: `memory`, completed with the preprocessor and with what
        environment and agent know (see `fitted`). If samples are sent whole, nothing is rebuilt,
        and the environment is not consulted.
        """
        if self.memory is None:  # an experiment from a file may import only some parts
            return self.memory
        shared = {"obs_preprocessor": self.obs_preprocessor, "crc_debug": self.crc_debug or None}
        shared = {name: value for name, value in shared.items() if value is not None}
        taken = signature_of(taken_apart(self.memory)[0]).parameters
        for name in shared:
            if name not in taken:
                raise ConfigError(
                    f"{name} is given, but the memory takes no argument of that name: add it to "
                    "its __init__ and pass it to MemoryDataloading's"
                )
        env = None if self.sample_compressor is None else self.env
        return completed(fitted(self.memory, env, self.agent), **shared)

    @functools.cached_property
    def compressor(self) -> Factory | None:
        """The compressor that the workers use: `sample_compressor`, or the memory's own."""
        if not isinstance(self.sample_compressor, OwnCompressor):
            return self.sample_compressor
        target, arguments = taken_apart(self.memory_cls)
        make = getattr(target, "compressor", None)
        return make(**arguments) if callable(make) else None

    @property
    def agent_cls(self) -> Factory:
        """The factory of the agent; if it takes an `actor_cls`, it is given the actor."""
        return completed(self.agent, actor_cls=self.actor)

    @property
    def training(self) -> functools.partial[Any]:
        """The factory of the training, for `Trainer`: a `partial` of `TrainingOffline`."""
        from tmrl_like.trainer.schedule import TrainingOffline

        return functools.partial(
            TrainingOffline,
            env_cls=self.env if self.spaces is None else self.spaces(),
            memory_cls=self.memory_cls,
            training_agent_cls=self.agent_cls,
            agent_scheduler=self.agent_scheduler,
            **{
                field.name: getattr(self.trainer, field.name)
                for field in dataclasses.fields(Schedule)
            },
        )

    def with_code(self, parts: Collection[str] = tuple(PARTS)) -> Experiment:
        """Return a copy with the code that its document names.

        Modules beside the file can be named: the file's folder is put first on Python's module
        search path. If the agent is not among the parts, the actor is its variant without torch, if
        there is one.

        Args:
            parts: what to import, together with what these parts need to know of others; the rest
                is None. So a robot does not need the agent's packages, nor the trainer's machine
                the robot's.

        Raises:
            ConfigError: anything is wrong with the code; one line with file, line, key and what was
                expected.
        """
        if not self.document.data:
            raise ConfigError("there is no code to import: the experiment was made in a script")
        if "actor" in parts and "agent" not in parts:
            _resolve_without_torch(self.document)
        made = make_parts(self.document, parts)
        try:
            return dataclasses.replace(self, **made)
        except ConfigError as error:
            raise ConfigError(with_place(self.document, str(error))) from None

    def as_data(self, shows_told: bool = True) -> dict[str, Any]:
        """Return the whole experiment as plain data: what its file says, the defaults of all
        imported parts and, unless it shall follow from them again, what the parts tell each other.
        """
        whole: dict[str, Any] = {}
        for name in TOP_LEVEL:
            if name in SECTIONS:
                whole[name] = dataclasses.asdict(getattr(self, name))
            elif name not in PARTS:
                whole[name] = getattr(self, name)
            elif name != "sample_compressor" or name in self.document.data:  # null is not left out
                made = self.memory_cls if name == "memory" else None
                whole[name] = with_defaults(self.document, name, made, shows_told)
        return whole

    def refuse_finished(self) -> None:
        """Raise FinishedError if the run's checkpoint is that of a finished training."""
        from tmrl_like.trainer.checkpoint_file import read_newest

        if self.trainer.checkpoint and self.trainer.resume == "all":
            found = read_newest(self.paths.checkpoint)
            if found is not None:
                self.trainer.refuse_finished(found.head.epoch, found.head.elapsed_s)

    def seed_generators(self, name: str = "") -> None:
        """Seed the generators of Python, numpy and, if it is loaded, torch, each worker's `name`
        in its own way; do nothing without a seed.
        """
        seed = self.seed
        if seed is not None and name:
            seed = zlib.crc32(f"{seed} {name}".encode())
        seed_generators(seed)

    def make_server(self, **more: Any) -> Server:
        """Return the server, already listening; `more` adds or replaces arguments of `Server`."""
        from tmrl_like.server.server import Server

        section = self.server
        usual = {
            "port": section.port,
            "host": section.listens_on,
            "options": section,
            "engine": self.engine,
        }
        return Server(**section.connection | usual | more)

    @contextlib.contextmanager
    def make_worker(self, **more: Any) -> Iterator[RolloutWorker]:
        """Make the worker for a `with` block, which closes it at the end. Meanwhile it uses the
        run's folder. `more` adds or replaces arguments of `RolloutWorker`.
        """
        from tmrl_like.config.run_lock import use_run

        with (
            use_run(self.paths, "worker"),
            self._new_worker(**more) as worker,
        ):
            yield worker

    def make_standalone(self, policy: str | Path | None = None, **more: Any) -> RolloutWorker:
        """Return a worker without a server that drives with the weights of a file, or untrained if
        None; `more` adds or replaces arguments of `RolloutWorker`.
        """
        return self._new_worker(
            **{"standalone": True, "model_path": policy, "on_rollout": None} | more
        )

    def _new_worker(self, **more: Any) -> RolloutWorker:
        from tmrl_like.worker.worker import RolloutWorker

        section, paths = self.worker, self.paths
        usual = {
            "env_cls": self.env,
            "actor_module_cls": self.actor,
            "sample_compressor": self.compressor,
            "model_path": paths.worker_model,
            "model_path_history": paths.model_history,
            "obs_preprocessor": self.obs_preprocessor,
            "crc_debug": self.crc_debug,
            "seed": self.seed,
            "on_rollout": self.on_worker_rollout,
            "takeover": self.takeover,
            "action_chain": self.action_chain,
            "signals": paths.signals,
            "options": dataclasses.replace(section, spool=paths.spool)
            if section.spool is True
            else section,
        }
        return RolloutWorker(**self.server.dialled | usual | more)

    @contextlib.contextmanager
    def make_trainer(self, *, supervised: bool = False, **more: Any) -> Iterator[Trainer]:
        """Make the trainer for a `with` block, which closes it at the end. Meanwhile it owns the
        run's folder.

        Args:
            supervised: this process was started by a `tmrl-like run` that owns the folder.
            more: adds or replaces arguments of `Trainer`.

        Raises:
            ConfigError: another process uses the run.
        """
        from tmrl_like.config.run_lock import use_run
        from tmrl_like.trainer.trainer import Trainer

        paths = self.paths
        usual = {
            "model_path": paths.trainer_model,
            "checkpoint_path": paths.checkpoint if self.trainer.checkpoint else None,
            "metrics_path": paths.metrics,
            "policies_path": paths.policies,
            "options": self.trainer,
            "connect": self.engine,
        }
        part = "trainer" if os.environ.get("RANK", "0") == "0" else "rank"
        with (
            use_run(paths, part, supervised=supervised),
            Trainer(self.training, **self.server.dialled | usual | more) as trainer,
        ):
            if self.seed is not None and trainer.training.total_updates == 0:
                trainer.training.memory.seed(self.seed + trainer.ranks.rank)
            yield trainer

    @contextlib.contextmanager
    def make_in_process(
        self, worker: Mapping[str, Any] | None = None, **more: Any
    ) -> Iterator[Trainer]:
        """Make a trainer for a `with` block that also makes a worker's steps, in this process and
        in lockstep, without a server. A step may take as long as it likes: it may be stopped in a
        debugger.

        Samples are packed, stored and unpacked like those that come over a network. With a seed and
        an environment that is determined by its own seed, the resulting parameters are the same bit
        for bit, on one machine's CPU.

        Args:
            worker: adds or replaces arguments of `RolloutWorker`.
            more: adds or replaces arguments of `Trainer`, as in `make_trainer`.

        Raises:
            ConfigError: the environment runs in real time.
            EnvironmentFaultError: the environment fails again and again.
        """
        from tmrl_like.in_process import DirectLink

        self.seed_generators()
        # a spool is of no use: worker and trainer end together
        options = dataclasses.replace(self.worker, spool=False, hang_timeout_s=math.inf)
        usual = {"name": "worker"} | dict(worker or {})
        with self._new_worker(**usual | {"standalone": True, "options": options}) as made:
            steps = made.steps(self.worker.test_episode_interval, verbose=True)
            link = functools.partial(DirectLink, made, steps)
            with self.make_trainer(connect=link, **more) as trainer:
                yield trainer


def load_experiment(
    path: str | Path, overrides: Overrides = (), parts: Collection[str] = tuple(PARTS)
) -> Experiment:
    """Read an experiment and import the code that it names, see `Experiment.with_code`.

    Args:
        path: the YAML file, or the name of an experiment that ships with the package.
        overrides: keys and values (as text) that replace the file's: `[(("trainer", "epochs"),
            "3")]`.
        parts: what to import.

    Raises:
        ConfigError: anything is wrong with the file; one line with file, line, key and what was
            expected.
    """
    return experiment_of(open_experiment(path, overrides)).with_code(parts)


def experiment_of(document: Document) -> Experiment:
    """Return an experiment with the plain values of the document; no code is imported.

    Raises:
        ConfigError: a value is wrong.
    """
    nothing = dict.fromkeys(("env", "actor", "agent", "memory"))
    return Experiment(document=document, **vars(settings_of(document)), **nothing)  # type: ignore[arg-type]


def _resolve_without_torch(document: Document) -> None:
    """Import the variant of the actor without torch, if there is one, in place of the named
    actor.
    """
    from tmrl_like.policies.load_policy import without_torch

    actor = document.data["actor"]
    named = actor.get("class_path") if isinstance(actor, dict) else None
    if isinstance(named, str) and without_torch(named) != named:
        twin = dict(document.data, actor=actor | {"class_path": without_torch(named)})
        # both documents share `components`, so what is found here serves the original too
        same = dataclasses.replace(document, data=twin)
        resolve_component(same, ("actor",), PARTS["actor"])
