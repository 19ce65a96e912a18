"""The rollout worker: acts in the environment, in real time, and lets nothing else wait in that thread."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

import tmrl_like.config.config_constants as cfg
from tmrl_like.base import clocks, script
from tmrl_like.base.gone import GONE
from tmrl_like.base.options import with_given
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.config.paths import RunPath, RunPaths
from tmrl_like.config.run_lock import use_run
from tmrl_like.delivery.folder import new_name
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.envs.actions import held_actions
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv
from tmrl_like.errors import ConfigError, DamagedPolicyError, TransportError
from tmrl_like.policies.intake import PolicyIntake, TorchIntake
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.rollouts.hooks import Hook, Rollouts
from tmrl_like.transport import TransportOptions, addresses_of
from tmrl_like.types import Driver, EpisodeStats, ObsPreprocessor, SampleCompressor
from tmrl_like.wire.condition import RETURNS_KEPT, Condition
from tmrl_like.wire.spaces import describe_spaces
from tmrl_like.worker.control_loop import ControlLoop
from tmrl_like.worker.dead_man import DeadMan, to_action
from tmrl_like.worker.lane import Lane, Order, orders
from tmrl_like.worker.link_client import LinkClient, LinkProcess, LinkThread, end_link_process, start_link_process
from tmrl_like.worker.link_messages import Hasten, Start
from tmrl_like.worker.options import WorkerOptions
from tmrl_like.worker.realtime import real_time, refuse_missing_cores
from tmrl_like.worker.shared import Shared
from tmrl_like.worker.takeover import Takeover
from tmrl_like.worker.timing import StepTimes, measure, percentiles

log = logging.getLogger("tmrl_like.worker")

_T = TypeVar("_T")
_MAX_REASON = 1000


class RolloutWorker:
    """Drives an environment with the newest policy and sends the samples to the server.

    The environment lives in a thread of its own, which acts, steps and appends while the caller of `run`
    waits. With `options.envs` there are several, each with a thread and episodes of its own, and one policy; single
    episodes and test episodes are the first one's. Encoding, sending, receiving and checking weights, and writing them
    to disk happen in a process of its own, the link, which this one starts, and starts again if it ends. An environment
    that raises or hangs is closed and made again.
    Construction connects and collects nothing. Use it as a context manager, or call `close`; one that is still open
    when the script ends is closed then.

    Attributes:
        lanes: the environments, each with its control loop.
        loop: the first control loop, with its counts (`env_steps`, `overruns`, …), the supervised environment (`env`)
            and what stands in for the policy (`dead_man`). To look at, from any thread.
        link: the worker's end of its link, with what is known of the connection (`status`); None: it has none.
        rollouts: what calls `on_rollout`, with its count of dropped episodes; None: nobody asked for them.
        name: this worker's.
        standalone: whether it has no connection.
    """

    def __init__(
        self,
        env_cls: Callable[[], Any],
        actor_module_cls: Callable[..., Any],
        sample_compressor: SampleCompressor | None = None,
        device: str | None = None,
        server_ip: str | Sequence[str] | None = None,
        min_samples_per_worker_packet: int | None = None,
        max_samples_per_episode: float | None = None,
        model_path: str | Path | RunPath | None = RunPath.OF_RUN,
        obs_preprocessor: ObsPreprocessor | None = None,
        crc_debug: bool = False,
        model_path_history: str | Path | RunPath | None = RunPath.OF_RUN,
        model_history: int | None = None,
        standalone: bool = False,
        *,
        server_port: int | None = None,
        transport: str = "zmq",
        keys_dir: str | Path | None = None,
        name: str | None = None,
        policy: str | Path | None = None,
        seed: int | None = None,
        on_rollout: Hook | Sequence[Hook] | None = None,
        takeover: Callable[..., Driver] | None = None,
        options: WorkerOptions | None = None,
        limits: TransportOptions | None = None,
    ) -> None:
        """Make environment and actor, and connect (without waiting for the server).

        Args:
            env_cls: makes the environment, e.g. `partial(GenericGymEnv, id=…, gym_kwargs=…)`.
            actor_module_cls: makes the actor from `observation_space` and `action_space`.
            sample_compressor: (act, obs, rew, terminated, truncated, info) -> the same six, reduced; runs
                before sending. None sends samples as they are.
            device: as in `options`, in place of what is there.
            server_ip: the server's address, or those of several that have one key pair: the worker dials one of them,
                and the next one when that is away. Each may have a port of its own, "a.example:7791". None:
                `cfg.SERVER_IP_FOR_WORKER`, which is this machine unless set.
            min_samples_per_worker_packet: as `outbox.min_samples` in `options`: no packet leaves with fewer samples.
            max_samples_per_episode: likewise.
            model_path: weights are loaded from there now, if the file exists, and the newest are kept there; a file
                that is damaged is put aside. Left out: the run's file (`cfg.MODEL_PATH_WORKER`); None: neither.
            obs_preprocessor: applied to each observation right before the actor sees it.
            crc_debug: send the original with every sample, for a memory with `crc_debug=True` to compare.
            model_path_history: prefix of the files that `model_history` keeps; left out: the run's
                (`cfg.MODEL_PATH_SAVE_HISTORY`); None: none are kept.
            model_history: likewise.
            standalone: no connection; the actor acts with the weights from `model_path`.
            server_port: the server's port; None: `cfg.PORT`, which is 7790 unless set.
            transport: "zmq", "tlspyo" or "inproc"; the server's.
            keys_dir: where this machine's key is; None: `cfg.KEYS_FOLDER`.
            name: unique among workers; None: made from host and process or, with a spool, that of the first
                folder in it that no process uses.
            policy: the policy file that drives, whatever is published, in place of `model_path`; its version goes with
                each sample.
            seed: decides, with the name if one is given, on the seeds of the environments' first resets; None: they get
                none.
            on_rollout: called with each finished episode, as a `Rollout`, in a thread of its own; several are called in
                turn. At most four episodes wait for it, further ones are dropped and counted. The arrays of actions,
                `info` and observations must not be changed after the step that made them.
            takeover: makes, from `action_space` and `default_action`, who may drive the first environment in place of
                the policy (see `types.Driver`), e.g. `envs.drivers.KeyDriver`; None: nobody.
            options: how it runs; None: the defaults, and `cfg.MODEL_HISTORY`.
            limits: of the transport.

        Raises:
            CredentialsError: this machine's key cannot be read.
            PolicyError: the weights at `model_path` do not fit the actor, or are not fit to act.
            EnvironmentFaultError, ConfigError: the environment cannot be made.
            ConfigError: an argument is out of range, or the spool cannot be used.
            MemoryContractError: the compressor does not take the six items of a sample.
            ShortageError: the system gives it no threads, or no process for its link.
        """
        options = with_given(
            WorkerOptions,
            WorkerOptions(model_history=cfg.MODEL_HISTORY) if options is None else options,
            device=device,
            max_samples_per_episode=max_samples_per_episode,
            model_history=model_history,
        )
        self._is_pinned = policy is not None
        weights = cfg.path_of_run(model_path, "MODEL_PATH_WORKER")
        history = cfg.path_of_run(model_path_history, "MODEL_PATH_SAVE_HISTORY")
        refuse_missing_cores(options.cpu_affinity)
        self._real_time = partial(real_time, priority=options.realtime_priority, cpu_affinity=options.cpu_affinity)
        in_process = options.link_process and transport != "inproc"
        process = start_link_process() if in_process and not standalone else None  # it starts while the rest is made
        self._use = contextlib.ExitStack()  # of the run's folder
        with contextlib.ExitStack() as undo:  # what a failure below must not leave behind
            undo.callback(self._use.close)
            if isinstance(model_path, RunPath) and not standalone:
                self._use.enter_context(use_run(RunPaths(cfg.RUN_NAME, cfg.DATA_FOLDER), "worker"))
            if process is not None:
                undo.callback(end_link_process, process)
            envs: list[SupervisedEnv] = []
            for number in range(options.envs):
                seed_of_env = None if seed is None else _seed_of(seed, name or "", number)
                envs.append(SupervisedEnv(env_cls, options.hang_timeout_s, options.own_thread, seed_of_env))
                undo.callback(envs[-1].close)
            first = envs[0].env
            safe = None if options.safe_action is None else to_action(options.safe_action, first.action_space)

            def make_actor() -> Any:
                spaces = {"observation_space": first.observation_space, "action_space": first.action_space}
                actor = actor_module_cls(**spaces).to_device(options.device)
                return actor.in_numpy() or actor

            _refuse_longer_buffer(sample_compressor, first)
            probe = PolicyProbe(first.observation_space, first.action_space, obs_preprocessor)
            actors = [make_actor() for _ in envs]
            outbox = with_given(OutboxOptions, options.outbox, min_samples=min_samples_per_worker_packet)
            self.standalone = standalone
            waiting = 4 * options.envs
            self.rollouts = Rollouts(on_rollout, options.rollout_observations, waiting) if on_rollout else None
            if self.rollouts is not None:
                undo.callback(self.rollouts.close)
            self.link: LinkClient | None = None
            self.name = name or new_name()
            self._where = ""
            self._shared: Shared | None = None
            intakes: list[PolicyIntake] = [TorchIntake(None, probe, make_actor) for _ in envs]
            if not standalone:
                spool = cfg.RUN_FOLDER / "spool" if options.spool is True else options.spool
                place = Path(spool) if spool else None
                self._shared = Shared(place, name, actors, make_actor, probe, outbox)
                undo.callback(self._shared.close)
                intakes, self.name = self._shared.intakes, self._shared.worker
            start = weights if policy is None else Path(policy)
            self.lanes: list[Lane] = []
            for number, env in enumerate(envs):
                dead_man = DeadMan(
                    math.inf if standalone or policy is not None else options.max_policy_age_s,
                    lambda env=env: env.default_action if safe is None else safe,  # type: ignore[misc]
                    env.log.add,
                )
                version = 0
                if start is not None and (policy is not None or start.is_file()):
                    try:
                        version = intakes[number].load_file(actors[number], start)
                        dead_man.renew(time.perf_counter())
                    except DamagedPolicyError as error:
                        if standalone or policy is not None:
                            raise
                        aside = start.replace(f"{start}.damaged")
                        log.warning("%s; it is %s now; starting without weights, until some arrive", error, aside)
                loop = ControlLoop(
                    env,
                    actors[number],
                    intakes[number],
                    self.name,
                    dead_man,
                    sample_compressor,
                    obs_preprocessor,
                    options.max_samples_per_episode,
                    crc_debug,
                    self._check,
                )
                loop.policy_version = version
                loop.rollouts = self.rollouts
                loop.samples = self._shared.samples[number] if self._shared is not None else None
                self.lanes.append(Lane(env, loop, intakes[number]))
            self.loop, self._env = self.lanes[0].loop, envs[0]
            if takeover is not None:
                self.loop.takeover = Takeover(takeover, envs[0], options.takeover_in_tests)
                undo.callback(self.loop.takeover.close)
            if self.loop.dead_man.has_policy:
                log.info("loaded weights from %s", start)
            self._waits_for_policy = options.wait_for_policy and not standalone
            self._has_warned = False
            self._closed = False
            self._idle = threading.Event()  # no run is under way
            self._idle.set()
            self._runner: threading.Thread | None = None
            self._awaits = False
            if self._shared is not None:
                port = cfg.PORT if server_port is None else server_port
                servers = addresses_of(server_ip or cfg.SERVER_IP_FOR_WORKER, port)
                self._where = ", ".join(servers)
                parts = self._condition, self.lanes
                link = LinkThread(*parts) if process is None else LinkProcess(*parts, process)
                link.begin(
                    Start(
                        **self._shared.for_link,
                        outbox=outbox,
                        transport=transport,
                        servers=servers,
                        keys=str(keys_dir or cfg.KEYS_FOLDER),
                        limits=limits or TransportOptions(),
                        spaces=describe_spaces(self.env.observation_space, self.env.action_space),
                        weights=str(weights or ""),
                        history=str(history or ""),
                        model_history=options.model_history,
                        log_level=log.getEffectiveLevel(),
                        condition=self._condition(),
                        epoch_s=clocks.EPOCH_S,
                    )
                )
                self.link = link
            undo.pop_all()
        script.close_at_exit(self, turn=0)

    def _condition(self) -> Condition:
        first, loops = self.loop, [lane.loop for lane in self.lanes]
        alarms: dict[str, None] = {}
        for lane in self.lanes:
            log_alarm = lane.samples.alarm if lane.samples is not None else ""
            alarms |= dict.fromkeys((lane.intake.verdicts.alarm, lane.loop.dead_man.alarm, log_alarm))
        received_at = min(loop.policy_received_at for loop in loops)
        ended = sorted(itertools.chain.from_iterable(list(lane.returns) for lane in self.lanes))
        return Condition(
            policy_version=min(loop.policy_version for loop in loops),
            policy_age_s=time.perf_counter() - received_at if received_at else 0.0,
            env_steps=sum(loop.env_steps for loop in loops),
            overruns=sum(loop.overruns for loop in loops),
            expert=first.expert or self._is_pinned,
            alarm="; ".join(filter(None, alarms)),
            safe_steps=sum(loop.dead_man.safe_steps for loop in loops),
            env_faults=sum(loop.env.faults for loop in loops),
            env_rebuilds=sum(loop.env.rebuilds for loop in loops),
            ended=first.ended,
            awaits=self._awaits,
            time_step_s=self._env.time_step_s,
            late_steps=tuple(map(sum, zip(*(loop.late_steps for loop in loops), strict=True))),
            action_delay_s=max(loop.action_delay_s for loop in loops),
            returns=tuple(return_ for _, return_ in ended[-RETURNS_KEPT:]),
            driver=first.drove.name.lower(),
        )

    @property
    def env_steps(self) -> NoReturn:
        """Gone: a loop counts its own (`loop.env_steps`)."""
        raise AttributeError(f"a RolloutWorker has no env_steps; {GONE['env_steps']}")

    @property
    def env(self) -> Any:
        """The environment; another one after a fault."""
        return self._env.env

    @property
    def actor(self) -> Any:
        """The instance that acts; another one after each policy that arrived."""
        return self.loop.actor

    @property
    def policy_version(self) -> int:
        """Version of the weights that act; 0: never updated."""
        return self.loop.policy_version

    def run(
        self,
        test_episode_interval: int = 0,
        nb_episodes: float = math.inf,
        verbose: bool = True,
        expert: bool = False,
    ) -> None:
        """Collect training episodes, for ever or `nb_episodes` of them. Ctrl-C ends it cleanly.

        Samples leave and weights arrive inside episodes as well as between them.

        Args:
            test_episode_interval: a test episode before every k-th training episode: `act(test=True)`,
                no training samples; 0: none.
            nb_episodes: number of training episodes.
            verbose: log every episode, not only the test episodes.
            expert: send samples, ignore weights, run no test episodes.

        Raises:
            RefusedError, CredentialsError: the server does not take this worker.
            EnvironmentFaultError: the environment fails again and again.
        """
        for lane in self.lanes:
            lane.loop.expert = expert
        if self.link is not None:
            self.link.tell(self._condition())
        order = Order(test=False, collect=True, verbose=verbose)
        begun = itertools.count()  # episodes, of all lanes

        def goes_on(episode: int) -> bool:
            return next(begun) < nb_episodes

        interval = 0 if expert else test_episode_interval
        self._drive_until_stopped([orders(order, goes_on, interval * (n == 0)) for n in range(len(self.lanes))])

    def run_episodes(
        self, max_samples_per_episode: float | None = None, nb_episodes: float = math.inf, train: bool = False
    ) -> list[EpisodeStats]:
        """Run episodes without sending samples, e.g. for deployment.

        Args:
            max_samples_per_episode: as in the constructor; None: the constructor's.
            nb_episodes: how many; `math.inf` runs until Ctrl-C.
            train: explore (`act(test=False)`).

        Returns:
            The statistics of all episodes.
        """
        all_stats: list[EpisodeStats] = []
        order = Order(test=not train, collect=False, verbose=True, max_samples=max_samples_per_episode)
        self._drive_until_stopped([orders(order, lambda episode: episode < nb_episodes)], all_stats.append)
        return all_stats

    def run_episode(
        self,
        max_samples: float | None = None,
        train: bool = False,
        after_step: Callable[[], None] | None = None,
    ) -> EpisodeStats:
        """Run one episode without sending samples; its return is reported to the trainer as a test.

        Args:
            max_samples: as in the constructor; None: the constructor's.
            train: explore (`act(test=False)`).
            after_step: called after each step, in the environment's thread.
        """
        return self._run_one(Order(test=not train, collect=False, max_samples=max_samples, after_step=after_step))

    def collect_train_episode(self, max_samples: float | None = None) -> EpisodeStats:
        """Run one episode, exploring, and send its samples."""
        return self._run_one(Order(test=False, collect=True, max_samples=max_samples))

    def run_synchronous(
        self,
        test_episode_interval: int = 0,
        nb_steps: float = math.inf,
        initial_steps: int = 1,
        max_steps_per_update: None = None,
        end_episodes: bool = True,
        verbose: bool = False,
    ) -> None:
        """Collect in lockstep with the trainer: a step allows so many training steps. Not for real-time environments.

        The ratio is the trainer's, `max_training_steps_per_env_step`. Of each environment the training steps of one
        environment step may wait while the next one is under way. At the end none is left. A trainer that is away is
        waited for.

        Args:
            test_episode_interval: a test episode before every k-th training episode; its steps do not count; 0: none.
            nb_steps: steps to collect in all, after the initial ones; episodes are finished.
            initial_steps: steps to collect before the first wait.
            max_steps_per_update: gone; it keeps the place of its successors.
            end_episodes: wait only between episodes.
            verbose: log every episode.

        Raises:
            ConfigError: the environment runs in real time, or `max_steps_per_update` is given.
        """
        if max_steps_per_update is not None:
            raise ConfigError(f"run_synchronous takes no max_steps_per_update; {GONE['max_steps_per_update']}")
        self._enter_lockstep()
        start = self._collected_steps

        def orders_of(lane: Lane, interval: int) -> Iterator[Order]:
            def wait(all_of_it: bool = False) -> None:
                if self._collected_steps - start >= initial_steps:
                    lane.await_training(all_of_it)

            def goes_on(episode: int) -> bool:
                if episode and end_episodes:
                    wait()
                return self._collected_steps - start < nb_steps + initial_steps

            after_step = None if end_episodes else wait
            order = Order(test=False, collect=True, verbose=verbose, after_step=after_step)
            yield from orders(order, goes_on, interval)
            wait(all_of_it=True)

        try:
            self._drive_until_stopped(
                [orders_of(lane, test_episode_interval * (n == 0)) for n, lane in enumerate(self.lanes)]
            )
        finally:
            self._awaits = False

    def steps(self, test_episode_interval: int = 0, verbose: bool = False) -> Iterator[None]:
        """Collect training episodes without end, in lockstep, in the thread that takes the values.

        Each value is one environment step, of the environments in turn. For a worker whose environments have no thread
        of their own (`own_thread: false`) and whose trainer lives in this thread as well (`run_in_process`).

        Raises:
            ConfigError: the environment runs in real time.
            EnvironmentFaultError: it fails again and again.
        """
        self._enter_lockstep()
        order = Order(test=False, collect=True, verbose=verbose)
        lanes = [
            lane.steps(orders(order, lambda episode: True, test_episode_interval * (n == 0)))
            for n, lane in enumerate(self.lanes)
        ]
        for steps in itertools.cycle(lanes):
            yield next(steps)

    def _enter_lockstep(self) -> None:
        if self._env.time_step_s:
            raise ConfigError(
                f"the environment runs in real time (time-step of {self._env.time_step_s * 1e3:g} ms), and synchronous "
                "collection would let it run on without an action while it waits for the trainer: use `run` "
                "(in an experiment: worker.synchronous: false)"
            )
        self._awaits = True
        if self.link is not None:
            self.link.tell(self._condition())

    @property
    def _collected_steps(self) -> int:
        return sum(lane.loop.collected_steps for lane in self.lanes)

    def _drive_until_stopped(
        self, orders: Sequence[Iterator[Order]], on_episode: Callable[[EpisodeStats], None] | None = None
    ) -> None:
        try:
            self._drive(orders, on_episode)
        except (KeyboardInterrupt, StoppedError):
            log.info("stopped by the user")
        finally:
            self.send_and_clear_buffer()

    def run_in_control_thread(self, call: Callable[[SupervisedEnv], _T]) -> _T:
        """Let a call of yours use the environment, in the thread in which it lives; returns what the call does.

        Raises:
            EnvironmentFaultError: the environment raised, or did not come back in time.
        """
        self._env.revive()
        return self._env.run(partial(call, self._env))

    def _run_one(self, order: Order) -> EpisodeStats:
        stats: list[EpisodeStats] = []
        self._drive([iter([order])], stats.append, tuned=False)
        return stats[0]

    def _drive(
        self,
        orders: Sequence[Iterator[Order]],
        on_episode: Callable[[EpisodeStats], None] | None = None,
        tuned: bool = True,
    ) -> None:
        """Carry out the orders of each lane; `tuned`: with what a long run asks of system and Python."""

        def tune(lane: Lane) -> contextlib.AbstractContextManager[None]:
            helpers = [threading.get_native_id(), *([self.link.thread_id] if self.link else [])]
            return self._real_time(lane.env.thread_id, helpers) if tuned else contextlib.nullcontext()

        failures: list[BaseException] = []

        def drive(lane: Lane, own: Iterator[Order]) -> None:
            try:
                lane.drive(own, on_episode, partial(tune, lane))
            except BaseException as error:  # the others stop as well
                failures.append(error)
                self.stop()

        self._runner = threading.current_thread()
        self._idle.clear()
        self._note_end(None)
        others: list[threading.Thread] = []
        try:
            self._await_policy()
            for number, (lane, own) in enumerate(zip(self.lanes[1:], orders[1:], strict=False), start=2):
                others.append(start_thread(partial(drive, lane, own), f"tmrl-lane-{number}"))
            drive(self.lanes[0], orders[0])
            for thread in others:
                while thread.is_alive():  # a wait without a limit cannot be interrupted by Ctrl-C on Windows
                    thread.join(0.25)
            if failures:
                raise failures[0]
        except (StoppedError, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.stop()
            self._note_end(error)
            raise
        finally:
            for thread in others:
                thread.join()
            self._idle.set()
            if not self._closed:
                for lane in self.lanes:
                    lane.env.stopping.clear()

    def _await_policy(self) -> None:
        """Hold still until there is a policy, where that is asked for; warn of hardware that moves without one."""
        dead_man = self.loop.dead_man
        if dead_man.has_policy or self.loop.expert:
            return
        if self._waits_for_policy:
            log.info("%s holds still until a policy arrives from %s (wait_for_policy)", self.name, self._where)
            self.update_actor_weights(blocking=True)
            if self._env.stopping.is_set():
                raise StoppedError
        elif self._env.moves_hardware and dead_man.expires_at == math.inf and not self._has_warned:
            self._has_warned = True
            log.warning(
                "an untrained policy is about to move hardware: with wait_for_policy the worker holds still until one "
                "has arrived from the trainer; without a trainer, give it weights (model_path)"
            )

    def _note_end(self, failure: BaseException | None) -> None:
        """Let trainers know what ended a run, or that one begins: one elsewhere, and one in this script."""
        reason = "" if failure is None else one_line(failure, _MAX_REASON)
        self.loop.ended = reason
        script.failures[self._where] = reason

    def run_env_benchmark(self, nb_steps: int, test: bool = False, verbose: bool = True) -> dict[str, Any]:
        """Measure the environment's time-steps with the actor in the loop.

        Args:
            nb_steps: how many steps.
            test: whether the actor acts as in a test.
            verbose: log the result.

        Returns:
            Percentiles in milliseconds, overruns, and under "rtgym" what rtgym's own benchmark says, where
            the environment was configured with it.
        """
        if not 0 < nb_steps < math.inf:
            raise ConfigError(f"nb_steps is {nb_steps}; it must be a positive number")
        times = StepTimes(nb_steps, self._env.overrun_after_s)
        self.measure(times, test=test)
        result: dict[str, Any] = {"steps": nb_steps, "overruns": times.overruns}
        columns = {"period": times.period_s, "inference": times.inference_s, "env_step": times.env_s}
        for name, values_s in columns.items():
            for q, value_s in zip((50, 99, 99.9), percentiles(values_s, (50, 99, 99.9)), strict=True):
                result[f"{name}_p{q:g}_ms"] = round(value_s * 1e3, 3)
        if getattr(self.env.unwrapped, "benchmark", False):
            result["rtgym"] = self.env.unwrapped.benchmarks()
        if verbose:
            log.info("environment benchmark: %s", result)
        return result

    def measure(self, times: StepTimes, test: bool = False) -> None:
        """Measure steps with the actor in the loop; `stop` ends it.

        Args:
            times: takes as many steps as it has room for; no samples are collected.
            test: whether the actor acts as in a test.
        """
        self._await_policy()
        with self._real_time(self._env.thread_id, [threading.get_native_id()]):
            self.run_in_control_thread(lambda _: measure(self.loop, times, test))

    def act(self, obs: Any, test: bool = False) -> Any:
        """Choose an action for a raw observation."""
        return self.loop.act(obs, test)

    def reset(self, collect_samples: bool) -> tuple[Any, dict[str, Any]]:
        """Start an episode, whose first observation becomes a sample if `collect_samples`; returns it and info."""
        self._await_policy()
        return self.run_in_control_thread(lambda _: self.loop.reset(collect_samples))

    def step(
        self, obs: Any, test: bool, collect_samples: bool, last_step: bool = False
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act on `obs` and do one environment step; returns what `gymnasium.Env.step` does, and the actor's `extras`
        in `info`.

        Args:
            obs: the newest observation.
            test: passed to the actor.
            collect_samples: whether the result becomes a sample.
            last_step: cut the episode here (`truncated=True`) if it does not terminate by itself.
        """
        return self.run_in_control_thread(lambda _: self.loop.step(obs, test, collect_samples, last_step))

    # -- weights and samples, by hand ----------------------------------------------------------------

    def send_and_clear_buffer(self) -> None:
        """Let the samples collected so far leave now; does not wait."""
        if self.link is not None:
            self.link.tell(Hasten())

    def use_weights(self, weights: bytes, version: int) -> None:
        """Act with these weights of a trainer in this thread (`run_in_process`) from now on."""
        for lane in self.lanes:
            lane.loop.use_weights(weights, version)

    def update_actor_weights(self, verbose: bool = True, blocking: bool = False) -> int:
        """Act with the newest weights from now on (`run` does so by itself).

        Args:
            verbose: log it.
            blocking: wait for new weights if there are none.

        Returns:
            1 if there were new weights, else 0.
        """
        while blocking and not self.lanes[0].intake.wait_for_new(0.2) and not self._env.stopping.is_set():
            self._check()
        changed = max(lane.loop.refresh_policy() for lane in self.lanes)
        if changed and verbose:
            log.info("acting with policy %d", self.policy_version)
        return int(changed)

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait until the server let this worker in; raises what it refused it for."""
        if self.link is None:
            raise TransportError("a standalone worker has no connection")
        until = time.monotonic() + timeout_s
        while not self.link.connected.wait(0.05) and time.monotonic() < until:
            self._check()
        self._check()
        return self.link.connected.is_set()

    def stop(self) -> None:
        """End the current (or next) run after its current step. Any thread, or a signal handler."""
        for lane in self.lanes:
            lane.env.stopping.set()

    def close(self) -> None:
        """Send what is left, leave the server, close the environment. Twice is fine."""
        self._closed = True
        self.stop()
        self.loop.ended = self.loop.ended or "it was closed"
        if threading.current_thread() is not self._runner:
            self._idle.wait(1.5)
        self.send_and_clear_buffer()
        if self.link is not None:
            self.link.close()
        for lane in self.lanes:
            lane.env.close()
        if self.loop.takeover is not None:
            self.loop.takeover.close()
        if self.rollouts is not None:
            self.rollouts.close()
        if self._shared is not None:
            self._shared.close()
        self._use.close()

    def __enter__(self) -> RolloutWorker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if self.link is not None:
            self.link.check()


def _seed_of(seed: int, name: str, number: int) -> int:
    """Of an environment: 31 bits that follow from the seed, the worker's name and the environment's number."""
    entropy = (seed, zlib.crc32(name.encode()), number)
    return int(np.random.SeedSequence(entropy).generate_state(1)[0]) >> 1


def _refuse_longer_buffer(compressor: SampleCompressor | None, env: Any) -> None:
    dropped, held = getattr(compressor, "act_buf_len", 0), held_actions(env)
    if held is not None and dropped > held:
        raise ConfigError(
            f"the compressor drops {dropped} actions of each observation, which ends in {held}: give the memory the "
            "environment's act_buf_len, or none"
        )
