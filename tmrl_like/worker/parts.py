"""What a worker is made of: environments, lanes that drive them, and the files that they share with the link."""

from __future__ import annotations

import contextlib
import logging
import math
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tmrl_like.config.config_constants as cfg
from tmrl_like.base import clocks
from tmrl_like.delivery.folder import WorkerFolder, new_name, open_folder
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.envs.actions import held_actions
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.errors import ConfigError, DamagedPolicyError
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.rollouts.hooks import Rollouts
from tmrl_like.transport import TransportOptions, addresses_of
from tmrl_like.types import ObsPreprocessor, SampleCompressor
from tmrl_like.wire.condition import RETURNS_KEPT
from tmrl_like.wire.spaces import describe_spaces
from tmrl_like.worker.arbiter import Arbiter
from tmrl_like.worker.control_loop import ControlLoop
from tmrl_like.worker.intake import DrivingActor, NumpyIntake, PolicyIntake, TorchIntake
from tmrl_like.worker.lane import Lane
from tmrl_like.worker.link_messages import Setup
from tmrl_like.worker.options import WorkerKeywords, WorkerOptions
from tmrl_like.worker.sampling import refuse_longer_buffer, sampler_of
from tmrl_like.worker.slots import PolicySlots
from tmrl_like.worker.takeover import Takeover, to_action

log = logging.getLogger("tmrl_like.worker")


class Parts:
    """Makes all that a worker has beside its connection.

    Attributes:
        lanes: one for each environment.
        name: the worker's.
        rollouts: what calls `on_rollout`; None: nobody asked for them.
    """

    def __init__(
        self,
        env_cls: Callable[[], Any],
        actor_module_cls: Callable[..., Any],
        options: WorkerOptions,
        keywords: WorkerKeywords,
        *,
        has_link: bool,
        sample_compressor: SampleCompressor | None,
        obs_preprocessor: ObsPreprocessor | None,
        crc_debug: bool,
    ) -> None:
        """Make them; nothing is left of them where that fails. Arguments, and what is raised, are `RolloutWorker`'s."""
        self._options, self._keywords = options, keywords
        self._actor_module_cls = actor_module_cls
        self._has_link = has_link
        self._envs: list[SupervisedEnv] = []
        self._closing = contextlib.ExitStack()
        try:
            self._make_envs(env_cls)
            self._env = self._envs[0].env
            refuse_longer_buffer(sample_compressor, held_actions(self._env))
            sample_of = sampler_of(sample_compressor, crc_debug)
            self._probe = PolicyProbe(self._env.observation_space, self._env.action_space, obs_preprocessor)
            actors = [self._make_actor() for _ in self._envs]
            self._is_numpy = actors[0].in_numpy() is actors[0]
            self.name = keywords.get("name") or new_name()
            self._samples = self._make_samples() if has_link else []
            arbiters = self._make_arbiters(actors, obs_preprocessor)
            hooks = keywords.get("on_rollout")
            self.rollouts = Rollouts(hooks, options.rollout_observations, 4 * options.envs) if hooks else None
            if self.rollouts is not None:
                self._closing.callback(self.rollouts.close)
            make_loop = partial(
                ControlLoop,
                worker=self.name,
                returns=deque(maxlen=RETURNS_KEPT),
                sample_of=sample_of,
                rollouts=self.rollouts,
            )
            loops = [make_loop(env, arbiter) for env, arbiter in zip(self._envs, arbiters, strict=True)]
            for loop, samples in zip(loops, self._samples, strict=False):
                loop.append_to(samples)
            self.lanes = [Lane(loop, options.max_samples_per_episode) for loop in loops]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the environments, then leave the files to the link, or remove them if it has ended. Twice is fine."""
        for env in self._envs:  # first: then nobody appends any more
            env.close()
        self._closing.close()

    def _make_envs(self, env_cls: Callable[[], Any]) -> None:
        options, name, seed = self._options, self._keywords.get("name"), self._keywords.get("seed")
        for number in range(options.envs):
            seed_of_env = None if seed is None else _seed_of(seed, name or "", number)
            self._envs.append(SupervisedEnv(env_cls, options.hang_timeout_s, options.own_thread, seed_of_env))

    def _make_actor(self) -> DrivingActor:
        env = self._env
        actor = self._actor_module_cls(observation_space=env.observation_space, action_space=env.action_space)
        actor = actor.to_device(self._options.device)
        made: DrivingActor = actor.in_numpy() or actor
        return made

    def _make_arbiters(self, actors: Sequence[DrivingActor], obs_preprocessor: ObsPreprocessor | None) -> list[Arbiter]:
        """Who drives, for each lane; whoever takes over, takes over the first one."""
        options, make_driver = self._options, self._keywords.get("takeover")
        is_pinned = self._keywords.get("policy") is not None
        intakes = self._make_intakes(actors)
        takeover = Takeover(make_driver, self._envs[0], options.takeover_in_tests) if make_driver else None
        if takeover is not None:
            self._closing.callback(takeover.close)
        make = partial(
            Arbiter,
            is_pinned=is_pinned,
            max_policy_age_s=options.max_policy_age_s if self._has_link and not is_pinned else math.inf,
            safe_action=None if options.safe_action is None else to_action(options.safe_action, self._env.action_space),
            obs_preprocessor=obs_preprocessor,
        )
        arbiters = [make(*parts) for parts in zip(self._envs, actors, intakes, strict=True)]
        arbiters[0].takeover = takeover
        return arbiters

    # -- what the worker shares with its link --------------------------------------------------------

    def _make_samples(self) -> list[SampleLog]:
        """Where each lane appends its samples; raises ConfigError where the folder cannot be used."""
        options, samples = self._options, []
        spool = cfg.RUN_FOLDER / "spool" if options.spool is True else options.spool
        self._folder = folder = self._open_folder(Path(spool) if spool else None, self._keywords.get("name"))
        self.name = folder.worker
        self._memory = folder if folder.is_private else self._open_folder(None, folder.worker)
        room_bytes = options.outbox.kept_bytes(folder.is_private) * 5 // 4  # the link drops the oldest before that
        for _ in range(options.envs):
            samples.append(SampleLog(folder, room_bytes // options.envs))
            self._closing.callback(samples[-1].close)
        return samples

    def _open_folder(self, root: Path | None, name: str | None) -> WorkerFolder:
        folder = open_folder(root, name)
        self._closing.callback(folder.close)
        return folder

    def _make_intakes(self, actors: Sequence[DrivingActor]) -> list[PolicyIntake]:
        """Where policies come from, for each lane; raises ConfigError where there is no room for them."""
        probe, make_actor, numbered = self._probe, self._make_actor, enumerate(actors)
        if not self._has_link:
            return [TorchIntake(None, probe, make_actor) for _ in numbered]
        folder = self._memory.path
        try:
            slots = PolicySlots(folder, actors[0].manifest(), self._input_size(actors[0]), len(actors))
        except OSError as error:
            raise ConfigError(
                f"cannot keep policies in this machine's shared memory, {folder.parent}: {error.strerror}; make room"
            ) from None
        if self._is_numpy:
            return [NumpyIntake(slots, probe, actor, make_actor, lane) for lane, actor in numbered]
        return [TorchIntake(slots, probe, make_actor, lane) for lane, _ in numbered]

    def _input_size(self, actor: DrivingActor) -> int:
        return actor.network.input.size if self._is_numpy else 0

    def setup(
        self,
        server_ip: str | Sequence[str] | None,
        weights: Path | None,
        history: Path | None,
    ) -> Setup:
        """What a link of this worker does: whom it dials, and where it keeps the newest weights, and every k-th."""
        actor, keywords = self.lanes[0].loop.driver.actor, self._keywords
        sampled = self._probe.sampled if self._is_numpy else []
        return Setup(
            worker=self.name,
            folder=str(self._folder.path),
            incarnations=[samples.incarnation for samples in self._samples],
            shared=str(self._memory.path),
            outbox=self._options.outbox,
            transport=keywords.get("transport", "zmq"),
            servers=addresses_of(server_ip or cfg.SERVER_IP_FOR_WORKER, keywords.get("server_port") or cfg.PORT),
            keys=str(keywords.get("keys_dir") or cfg.KEYS_FOLDER),
            limits=keywords.get("limits") or TransportOptions(),
            spaces=describe_spaces(self._env.observation_space, self._env.action_space),
            weights=str(weights or ""),
            history=str(history or ""),
            model_history=self._options.model_history,
            actor=type(actor).__name__,
            manifest=actor.manifest(),
            network=actor.spec if self._is_numpy else None,
            probes=b"".join(actor.flatten(obs).tobytes() for obs in sampled),
            input_size=self._input_size(actor),
            log_level=log.getEffectiveLevel(),
            epoch_s=clocks.EPOCH_S,
        )

    # -- policies from the disk ----------------------------------------------------------------------

    def load_policy(self, path: Path, is_needed: bool) -> None:
        """Have all lanes act with weights from the disk. A damaged file that is not `is_needed` is put aside.

        Raises:
            PolicyError: they do not fit the actor, or are not fit to act; or the file is damaged.
        """
        try:
            for lane in self.lanes:
                lane.loop.driver.load_file(path)
            log.info("loaded weights from %s", path)
        except DamagedPolicyError as error:
            if is_needed:
                raise
            aside = path.replace(f"{path}.damaged")
            log.warning("%s; it is %s now; starting without weights, until some arrive", error, aside)


def _seed_of(seed: int, name: str, number: int) -> int:
    """Of an environment: 31 bits that follow from the seed, the worker's name and the environment's number."""
    entropy = (seed, zlib.crc32(name.encode()), number)
    return int(np.random.SeedSequence(entropy).generate_state(1)[0]) >> 1
