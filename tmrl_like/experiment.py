"""An experiment: everything that server, workers and trainer of one training share, said once.

A script makes it by calling `Experiment`, a file by `load_experiment`. What one part knows from
another is worked out here, for both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import os
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tmrl_like.base.factories import completed, fitted, signature_of, taken_apart
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

Factory: TypeAlias = Callable[..., Any]
"""A class, a function or a `partial` of one: called later, by whoever has what is still missing."""


class OwnCompressor(enum.Enum):
    """What the compressor is when it is left out."""

    OF_MEMORY = "what the memory's class gives as its own"


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """Everything that server, workers and trainer of one experiment share; each of them is made
    from it::

        experiment = Experiment(env=DroneEnv, actor=SquashedGaussianActor, agent=SACAgent,
        memory=ReplayMemory) with experiment.make_trainer() as trainer:
            trainer.run()

    A section (`server`, `worker`, `trainer`, `proof`) may be given as a mapping:
    `trainer={"epochs": 3}`. What is kept of a run lies in the folder of its `run_name`. What one
    part knows need not be told to another: see `memory_cls`, `compressor` and `agent_cls`.

    Attributes:
        env: makes the environment.
        actor: makes the policy from observation_space and action_space, on the workers and in the
            agent alike.
        agent: makes the learning algorithm from observation_space, action_space and device; one
            that takes an actor_cls is given `actor`.
        memory: makes the replay memory from nb_steps and device.
        sample_compressor: takes out of a sample, before sending, what the memory can rebuild; where
            it is left out, it is what the memory's class gives as its own; none: samples travel
            whole.
        obs_preprocessor: applied to each observation right before the model, on the worker and in
            the memory.
        agent_scheduler: called as f(agent, epoch) at the start of each epoch.
        on_worker_rollout: called on a worker with each finished episode, as a `Rollout`.
        takeover: makes who may drive a worker's first environment in place of the policy, from
            action_space and default_action: keys, a gamepad, a program.
        action_chain: makes what the actions of each environment go through: filters and limits.
        spaces: returns (observation_space, action_space), for a trainer's machine that cannot make
            the environment.
        document: the file that it is from, and where its values were written; a script leaves it
            out.
        memory_cls: what makes the memory: `memory`, given what environment and agent know (see
            `fitted`), and the preprocessor. Of samples that travel whole nothing is rebuilt, and
            the environment is not asked.
        compressor: what the workers take out of samples: `sample_compressor`, or the memory's own.
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
    memory_cls: Factory = field(init=False, repr=False, compare=False)
    compressor: Factory | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check what can be known without making anything.

        Raises:
            ConfigError: a section has no such key or value, or parts contradict each other.
        """
        for name, page in SECTIONS.items():
            given = getattr(self, name)
            if isinstance(given, Mapping):
                object.__setattr__(self, name, make_page(self.document, (name,), page, dict(given)))
        super().__post_init__()
        object.__setattr__(self, "memory_cls", self._make_memory_cls())
        object.__setattr__(self, "compressor", self._make_compressor())

    def _make_memory_cls(self) -> Factory:
        if self.memory is None:  # of a file, only some parts are imported
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

    def _make_compressor(self) -> Factory | None:
        if not isinstance(self.sample_compressor, OwnCompressor):
            return self.sample_compressor
        target, arguments = taken_apart(self.memory_cls)
        make = getattr(target, "compressor", None)
        return make(**arguments) if callable(make) else None

    @property
    def agent_cls(self) -> Factory:
        """What makes the agent: one that takes an `actor_cls` is given the actor."""
        return completed(self.agent, actor_cls=self.actor)

    @property
    def training(self) -> functools.partial[Any]:
        """What makes the training, for `Trainer`: a `partial` of `TrainingOffline`."""
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
        """The same with code that its document names.

        Modules beside the file can be named: its folder is put first where Python looks for
        modules. Without the agent, the actor is the form of it that needs no torch, if it has one.

        Args:
            parts: what to import, and what these need to know of others; the rest is None. A robot
                need not have the agent's packages, nor the trainer's machine the robot's.

        Raises:
            ConfigError: anything wrong with it; one line with file, line, key and what was
                expected.
        """
        if "actor" in parts and "agent" not in parts:
            _resolve_without_torch(self.document)
        made = make_parts(self.document, parts)
        try:
            return dataclasses.replace(self, **made)
        except ConfigError as error:
            raise ConfigError(with_place(self.document, str(error))) from None

    def as_data(self) -> dict[str, Any]:
        """What its file says, and of all that was imported the defaults, and what they know of each
        other.
        """
        whole: dict[str, Any] = {}
        for name in TOP_LEVEL:
            if name in SECTIONS:
                whole[name] = dataclasses.asdict(getattr(self, name))
            elif name not in PARTS:
                whole[name] = getattr(self, name)
            else:
                whole[name] = with_defaults(
                    self.document, name, self.memory_cls if name == "memory" else None
                )
        return whole

    def refuse_finished(self) -> None:
        """Raise FinishedError where the run's checkpoint is that of a training that has come to its
        end.
        """
        from tmrl_like.trainer.checkpoint_file import read_head

        if self.trainer.checkpoint and self.trainer.resume == "all":
            head = read_head(self.paths.checkpoint)
            if head is not None:
                self.trainer.refuse_finished(head.epoch, head.elapsed_s)

    def seed_generators(self) -> None:
        """Seed the generators of Python, numpy and, if it is loaded, torch; without a seed nothing
        is done.
        """
        if self.seed is not None:
            import numpy as np

            random.seed(self.seed)
            np.random.seed(self.seed)
            if "torch" in sys.modules:
                sys.modules["torch"].manual_seed(self.seed)

    def make_server(self, **more: Any) -> Server:
        """The server, which listens when this returns; `more` are further or other arguments of
        `Server`.
        """
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
    def make_worker(self, *, supervised: bool = False, **more: Any) -> Iterator[RolloutWorker]:
        """The worker, for a `with` block, at the end of which it is closed; meanwhile it uses the
        run's folder.

        Args:
            supervised: a `tmrl-like run` that owns the folder has started this process.
            more: further or other arguments of `RolloutWorker`.
        """
        from tmrl_like.config.run_lock import use_run

        with (
            use_run(self.paths, "worker", supervised=supervised),
            self._new_worker(**more) as worker,
        ):
            yield worker

    def make_standalone(self, policy: str | Path | None = None, **more: Any) -> RolloutWorker:
        """A worker without a server, driving with the weights of a file or, with None,
        untrained.
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
        """The trainer, for a `with` block, at the end of which it is closed; meanwhile it owns the
        run's folder.

        Args:
            supervised: a `tmrl-like run` that owns the folder has started this process.
            more: further or other arguments of `Trainer`.

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

    def make_in_process(
        self, worker: Mapping[str, Any] | None = None, **more: Any
    ) -> contextlib.AbstractContextManager[Trainer]:
        """A trainer that has a worker make steps in the same thread, in lockstep, without a server;
        for a `with` block.

        Args:
            worker: further or other arguments of `RolloutWorker`.
            more: as `make_trainer`'s.
        """
        from tmrl_like.in_process import connected

        self.seed_generators()
        return connected(
            functools.partial(self.make_trainer, **more),
            functools.partial(self._new_worker, **{"name": "worker"} | dict(worker or {})),
            dataclasses.replace(self.worker, spool=False),  # there is nothing that it could outlive
            self.worker.test_episode_interval,
            verbose=True,
        )


def load_experiment(
    path: str | Path, overrides: Overrides = (), parts: Collection[str] = tuple(PARTS)
) -> Experiment:
    """Read an experiment and import the code that it names, see `Experiment.with_code`.

    Args:
        path: the YAML file, or the name of an experiment that ships.
        overrides: keys and values (as text) that replace the file's.
        parts: what to import.

    Raises:
        ConfigError: anything wrong with the file; one line with file, line, key and what was
            expected.
    """
    return experiment_of(open_experiment(path, overrides)).with_code(parts)


def experiment_of(document: Document) -> Experiment:
    """The plain values of an experiment that was read; no code is imported. ConfigError: one that
    cannot be.
    """
    nothing = dict.fromkeys(("env", "actor", "agent", "memory"))
    return Experiment(document=document, **vars(settings_of(document)), **nothing)  # type: ignore[arg-type]


def _resolve_without_torch(document: Document) -> None:
    """Import the form of the actor that needs no torch, if there is one, in place of the one that
    is named.
    """
    from tmrl_like.policies.load_policy import without_torch

    actor = document.data["actor"]
    named = actor.get("class_path") if isinstance(actor, dict) else None
    if isinstance(named, str) and without_torch(named) != named:
        twin = dict(document.data, actor=actor | {"class_path": without_torch(named)})
        # what is found goes to the components of both
        same = dataclasses.replace(document, data=twin)
        resolve_component(same, ("actor",), PARTS["actor"])
