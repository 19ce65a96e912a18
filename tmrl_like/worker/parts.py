"""The parts of a worker: environments, lanes that drive them, the link, and the files that worker
and link share.
"""

from __future__ import annotations

import contextlib
import logging
import math
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import gymnasium
import numpy as np

import tmrl_like.config.config_constants as cfg
from tmrl_like.base import clocks, script
from tmrl_like.base.options import Natural, in_range
from tmrl_like.config.paths import RunPaths
from tmrl_like.config.run_lock import LISTENS, use_run
from tmrl_like.delivery.folder import name_of_peer, open_folder
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.envs.actions import held_actions
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.errors import ConfigError, DamagedPolicyError, expect
from tmrl_like.policies.acting import Actor, NetworkActor
from tmrl_like.policies.network import input_size
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.rollouts.hooks import Rollouts
from tmrl_like.transport import TransportOptions, server_address
from tmrl_like.types import ObsPreprocessor, SampleCompressor
from tmrl_like.wire.condition import RETURNS_KEPT
from tmrl_like.wire.spaces import describe_spaces
from tmrl_like.worker.action_chain import ActionChain
from tmrl_like.worker.arbiter import Arbiter
from tmrl_like.worker.control_loop import ControlLoop
from tmrl_like.worker.intake import NumpyIntake, PolicyIntake, TorchIntake
from tmrl_like.worker.judged_loop import JudgedLoop
from tmrl_like.worker.lane import Lane
from tmrl_like.worker.link_client import LinkClient, LinkProcess, LinkThread
from tmrl_like.worker.link_messages import Setup
from tmrl_like.worker.options import WorkerKeywords, WorkerOptions
from tmrl_like.worker.person import Person
from tmrl_like.worker.realtime import refuse_missing_cores
from tmrl_like.worker.sampling import refuse_longer_buffer, sampler_of
from tmrl_like.worker.slots import PolicySlots
from tmrl_like.worker.takeover import Takeover, to_action

log = logging.getLogger("tmrl_like.worker")

_PartT = TypeVar("_PartT", bound=script.Part)


class Parts:
    """Makes all parts of a worker.

    Attributes:
        lanes: one for each environment.
        name: the worker's name.
        rollouts: calls `on_rollout`; None: none was given.
        person: judges the first lane's episodes; None: no person watches.
    """

    def __init__(
        self,
        closing: contextlib.ExitStack,
        env_cls: Callable[[], gymnasium.Env],
        actor_module_cls: Callable[..., Actor],
        options: WorkerOptions,
        keywords: WorkerKeywords,
        *,
        standalone: bool,
        sample_compressor: SampleCompressor | None,
        obs_preprocessor: ObsPreprocessor | None,
        crc_debug: bool,
    ) -> None:
        """Make the parts; `closing` closes them. The other arguments, and what is raised, are those
        of `RolloutWorker`.
        """
        self._options, self._keywords, self._closing = options, keywords, closing
        self._actor_module_cls = actor_module_cls
        refuse_missing_cores(options.cpu_affinity)
        self._link = None if standalone else self._start_link()  # it starts while the rest is made
        self.rollouts: Rollouts | None = None
        if hooks := keywords.get("on_rollout"):
            rollouts = Rollouts(hooks, options.rollout_observations, 4 * options.envs)
            self.rollouts = self._closed_at_end(rollouts)
        self.name = name_of_peer(keywords.get("name"))
        self._logs = [] if standalone else self._make_logs()
        envs = [self._make_env(env_cls, number) for number in range(options.envs)]
        self._env = envs[0].env
        refuse_longer_buffer(sample_compressor, held_actions(self._env))
        self._probe = PolicyProbe(
            self._env.observation_space, self._env.action_space, obs_preprocessor
        )
        actors = [self._make_actor() for _ in envs]
        self._actor = actors[0]
        network = self._actor.in_numpy()
        if network is not None:
            self._probe.calibrate(network)
        # the link cannot compute the actions of other actors
        self._network = None if network is None else network.spec
        intakes = self._make_intakes(actors)
        takeover = self._make_takeover(envs[0])
        self.person = person = self._make_person()
        returns: deque[float] = deque(maxlen=RETURNS_KEPT)
        self.lanes: list[Lane] = []
        is_pinned = not standalone and keywords.get("policy") is not None
        safe_action = options.safe_action
        if safe_action is not None:
            safe_action = to_action(safe_action, self._env.action_space)
        age_s = math.inf if standalone or is_pinned else options.max_policy_age_s
        drives = is_pinned, age_s, safe_action
        logs: list[SampleLog | None] = [*self._logs] or [None] * options.envs
        for env, actor, intake, samples in zip(envs, actors, intakes, logs, strict=True):
            driver = Arbiter(env, actor, intake, *drives, takeover, obs_preprocessor)
            chain, sample_of = self._make_chain(env), sampler_of(sample_compressor, crc_debug)
            parts = driver, self.name, returns, sample_of, self.rollouts, samples, chain
            loop = ControlLoop(*parts) if person is None else JudgedLoop(*parts, person=person)
            self.lanes.append(Lane(loop, options.max_samples_per_episode))
            takeover = person = None  # only the first environment has these two

    def _closed_at_end(self, part: _PartT) -> _PartT:
        return self._closing.enter_context(contextlib.closing(part))

    def _make_env(self, env_cls: Callable[[], gymnasium.Env], number: int) -> SupervisedEnv:
        options, seed = self._options, self._keywords.get("seed")
        if seed is not None:
            in_range("seed", seed, Natural)
            seed = _seed_of(seed, self._keywords.get("name") or "", number)
        return self._closed_at_end(SupervisedEnv(env_cls, options.hang_timeout_s, seed))

    def _make_actor(self) -> Actor:
        env = self._env
        actor = self._actor_module_cls(
            observation_space=env.observation_space, action_space=env.action_space
        )
        actor = actor.to_device(self._options.device)
        if hasattr(actor, "eval"):  # not without torch
            actor.eval()
        return actor.in_numpy() or actor

    def _make_takeover(self, env: SupervisedEnv) -> Takeover | None:
        make_driver = self._keywords.get("takeover")
        if make_driver is None:
            return None
        return self._closed_at_end(Takeover(make_driver, env, self._options.takeover_in_tests))

    def _make_person(self) -> Person | None:
        options = self._options.person
        if not (options.watches or options.keys or options.reset_prompt):
            return None
        file = Path(self._keywords.get("signals") or cfg.RUN_FOLDER / "signals")
        person = self._closed_at_end(Person(options, file))
        self._closing.enter_context(use_run(RunPaths.of(file.parent), LISTENS))
        return person

    def _make_chain(self, env: SupervisedEnv) -> ActionChain | None:
        make_chain = self._keywords.get("action_chain")
        if make_chain is None:
            return None
        chain = make_chain()
        expected = "an ActionChain, with filters and limits in its list `parts`"
        kind = type(chain).__name__
        expect(isinstance(chain, ActionChain), "what action_chain makes", kind, expected)
        chain.connect(env.env.action_space, env.default_action, env.time_step_s)
        return chain

    # -- what the worker shares with its link ------------------------------------------------------

    def _make_logs(self) -> list[SampleLog]:
        """Make each lane's log of samples. Raises ConfigError if the folder cannot be used."""
        options = self._options
        spool = cfg.RUN_FOLDER / "spool" if options.spool is True else options.spool
        root = Path(spool).expanduser() if spool else None
        self._folder = folder = self._closed_at_end(open_folder(root, self._keywords.get("name")))
        self.name = folder.worker
        self._memory = folder
        if not folder.is_private:
            self._memory = self._closed_at_end(open_folder(None, folder.worker))
        max_bytes = options.outbox.kept_bytes(folder.is_private)
        return [
            self._closed_at_end(SampleLog(folder, max_bytes, logs=options.envs))
            for _ in range(options.envs)
        ]

    def _make_intakes(self, actors: Sequence[Actor]) -> Sequence[PolicyIntake]:
        """Make each lane's intake of policies. Raises ConfigError if there is no room for
        policies.
        """
        if not self._logs:
            return [PolicyIntake(self._probe) for _ in actors]
        folder = self._memory.path
        try:
            slots = PolicySlots(
                folder, self._actor.manifest(), input_size(self._network), len(actors)
            )
        except OSError as error:
            raise ConfigError(
                f"cannot keep policies in this machine's shared memory, {folder.parent}: "
                f"{error.strerror}; make room"
            ) from None
        return [
            NumpyIntake(slots, self._probe, actor, self._make_actor, lane)
            if isinstance(actor, NetworkActor)
            else TorchIntake(slots, self._probe, self._make_actor, lane)
            for lane, actor in enumerate(actors)
        ]

    def _start_link(self) -> LinkProcess | LinkThread:
        needs_thread = self._keywords.get("transport") == "inproc"
        in_process = self._options.link_process and not needs_thread
        link = LinkProcess() if in_process else LinkThread()
        self._closing.callback(link.end)
        return link

    def connect(
        self,
        server_ip: str | None,
        weights: Path | None,
        history: Path | None,
    ) -> LinkClient:
        """Start the work of the link: dial the server, and keep the newest policy in the
        file `weights` and every k-th one with the prefix `history`.

        Not for a standalone worker, which has no link.
        """
        assert self._link is not None
        keywords, network = self._keywords, self._actor.in_numpy()
        sampled = [] if network is None else map(network.flatten, self._probe.sampled)
        setup = Setup(
            worker=self.name,
            folder=str(self._folder.path),
            incarnations=[samples.incarnation for samples in self._logs],
            dead=self._folder.dead,
            shared=str(self._memory.path),
            outbox=self._options.outbox,
            transport=keywords.get("transport", "zmq"),
            server=server_address(
                server_ip or cfg.SERVER_IP_FOR_WORKER, keywords.get("server_port") or cfg.PORT
            ),
            keys=str(keywords.get("keys_dir") or cfg.KEYS_FOLDER),
            limits=keywords.get("limits") or TransportOptions(),
            spaces=describe_spaces(self._env.observation_space, self._env.action_space),
            weights=str(weights or ""),
            history=str(history or ""),
            model_history=self._options.model_history,
            actor=type(self._actor).__name__,
            manifest=self._actor.manifest(),
            network=self._network,
            probes=b"".join(flat.tobytes() for flat in sampled),
            epoch_s=clocks.EPOCH_S,
        )
        return self._closed_at_end(LinkClient(self._link, setup, self.lanes))

    # -- policies from the disk --------------------------------------------------------------------

    def load_policy(self, kept: Path | None, is_needed: bool) -> None:
        """Have all lanes act with the `policy` of the keywords or, without one, with the file
        `kept`, if it exists.

        If `kept` is damaged and not `is_needed`, it is renamed.

        Raises:
            PolicyError: the policy does not fit the actor, or is not fit to act, or its file is
                damaged.
        """
        policy = self._keywords.get("policy")
        path = kept if policy is None else Path(policy)
        if path is None or (policy is None and not path.is_file()):
            return
        try:
            for lane in self.lanes:
                lane.loop.driver.load_file(path)
            log.info("loaded weights from %s", path)
        except DamagedPolicyError as error:
            if is_needed or policy is not None:
                raise
            aside = path.replace(f"{path}.damaged")
            log.warning(
                "%s; it is %s now; starting without weights, until some arrive", error, aside
            )


def _seed_of(seed: int, name: str, number: int) -> int:
    """Return an environment's seed: 31 bits that follow from the seed, the worker's name and the
    environment's number.
    """
    entropy = (seed, zlib.crc32(name.encode()), number)
    return int(np.random.SeedSequence(entropy).generate_state(1)[0]) >> 1
