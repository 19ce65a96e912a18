"""The rollout worker: acts in the environment in real time, in a thread that waits for nothing
else.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

import gymnasium

import tmrl_like.config.config_constants as cfg
from tmrl_like.base import script
from tmrl_like.base.gone import GONE
from tmrl_like.base.options import Positive, in_range, refuse_unknown, with_given
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import start_thread, wait_checking
from tmrl_like.config.paths import RunPath, RunPaths
from tmrl_like.config.run_lock import use_run
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.envs.supervision import StoppedError
from tmrl_like.errors import ConfigError, TransportError
from tmrl_like.policies.acting import Actor
from tmrl_like.policies.weight_file import Weights
from tmrl_like.types import EpisodeStats, ObsPreprocessor, SampleCompressor
from tmrl_like.wire.condition import Condition
from tmrl_like.worker.control_loop import Info
from tmrl_like.worker.lane import Lane, Plan, condition_of
from tmrl_like.worker.link_client import LinkClient
from tmrl_like.worker.link_messages import Hasten
from tmrl_like.worker.options import WorkerKeywords, WorkerOptions
from tmrl_like.worker.parts import Parts
from tmrl_like.worker.realtime import real_time
from tmrl_like.worker.timing import StepTimes, measure

log = logging.getLogger("tmrl_like.worker")

_T = TypeVar("_T")
_LOOK_S = 0.005


class RolloutWorker:
    """Drives an environment with the newest policy and sends the samples to the server.

    The environment lives in its own thread, which acts, steps and appends while the caller of `run`
    waits. With `options.envs` there are several environments, each with its own thread and
    episodes; all act with one policy. Single episodes and test episodes use the first one. A
    separate process, the link, encodes and sends samples, receives and checks weights, and writes
    them to disk. The worker starts the link, and starts it again if it ends. An environment that
    raises or hangs is closed and rebuilt. Construction connects but collects nothing. Use the
    worker as a context manager, or call `close`; a worker that is still open when the script ends
    is closed then.

    Attributes:
        lanes: the environments, each with its control loop.
        loop: the first control loop, with the supervised environment (`env`) and the arbiter that
            chooses its actions (`driver`). For inspection, from any thread.
        link: the worker's end of its link, with the last known state of the connection (`status`);
            None: a standalone worker.
        rollouts: calls `on_rollout`, and counts dropped episodes; None: no `on_rollout` was given.
        person: takes a person's signals about the first environment's episodes; a script can give
            them instead (`say`). None: no person watches.
        name: this worker's name.
        standalone: whether it runs without a connection.
    """

    link: LinkClient | None = None
    _runner: threading.Thread | None = None
    _has_warned = _closed = False

    def __init__(
        self,
        env_cls: Callable[[], gymnasium.Env],
        actor_module_cls: Callable[..., Actor],
        sample_compressor: SampleCompressor | None = None,
        device: str | None = None,
        server_ip: str | None = None,
        min_samples_per_worker_packet: int | None = None,
        max_samples_per_episode: float | None = None,
        model_path: str | Path | RunPath | None = RunPath.OF_RUN,
        obs_preprocessor: ObsPreprocessor | None = None,
        crc_debug: bool = False,
        model_path_history: str | Path | RunPath | None = RunPath.OF_RUN,
        model_history: int | None = None,
        standalone: bool = False,
        *,
        options: WorkerOptions | None = None,
        **keywords: Unpack[WorkerKeywords],
    ) -> None:
        """Make environment and actor, and connect (without waiting for the server).

        Args:
            env_cls: makes the environment, e.g. `partial(GenericGymEnv, id=…, gym_kwargs=…)`.
            actor_module_cls: makes the actor from `observation_space` and `action_space`.
            sample_compressor: (act, obs, rew, terminated, truncated, info) -> the same six,
                reduced; runs before sending. None sends samples as they are.
            device: replaces `options.device`.
            server_ip: the server's address, perhaps with its port, "a.example:7791". None:
                `cfg.SERVER_IP_FOR_WORKER`, which is this machine unless set.
            min_samples_per_worker_packet: replaces `options.outbox.min_samples`, the minimum of
                samples in a packet.
            max_samples_per_episode: replaces `options.max_samples_per_episode`.
            model_path: the file of the newest weights. It is loaded now, if it exists, and
                rewritten when new weights arrive; a damaged file is renamed (a standalone worker
                raises). By default the run's file (`cfg.MODEL_PATH_WORKER`); None: no file.
            obs_preprocessor: applied to each observation right before the actor sees it.
            crc_debug: send the original with every sample, for a memory with `crc_debug=True` to
                compare.
            model_path_history: path prefix of the files that `model_history` keeps. By default the
                run's (`cfg.MODEL_PATH_SAVE_HISTORY`); None: none are kept.
            model_history: replaces `options.model_history`.
            standalone: run without a connection; the actor acts with the weights from `model_path`.
            options: how the worker runs; None: the defaults, with `cfg.MODEL_HISTORY`.
            keywords: rarely used settings, see `WorkerKeywords`, and how to reach the server, see
                `Dial`. Without a name, a worker with a spool takes the name of the first folder in
                the spool that no process uses.

        Raises:
            CredentialsError: this machine's key cannot be read.
            PolicyError: the weights at `model_path` do not fit the actor, or are not fit to act.
            EnvironmentFaultError, ConfigError: the environment cannot be made.
            ConfigError: an argument is out of range or unknown, or the spool cannot be used.
            MemoryContractError: the compressor does not take the six items of a sample.
            ShortageError: the system provides no threads, or no process for the link.
        """
        refuse_unknown("RolloutWorker", keywords, WorkerKeywords)
        options = WorkerOptions(model_history=cfg.MODEL_HISTORY) if options is None else options
        self._options = options = with_given(
            WorkerOptions,
            options,
            device=device,
            max_samples_per_episode=max_samples_per_episode,
            model_history=model_history,
            outbox=with_given(
                OutboxOptions, options.outbox, min_samples=min_samples_per_worker_packet
            ),
        )
        self.standalone = standalone
        self._idle = threading.Event()  # set while no run is under way
        self._idle.set()
        with contextlib.ExitStack() as closing:  # a failure below leaves nothing behind
            if isinstance(model_path, RunPath) and not standalone:
                closing.enter_context(use_run(RunPaths(cfg.RUN_NAME, cfg.DATA_FOLDER), "worker"))
            parts = Parts(
                closing,
                env_cls,
                actor_module_cls,
                options,
                keywords,
                standalone=standalone,
                sample_compressor=sample_compressor,
                obs_preprocessor=obs_preprocessor,
                crc_debug=crc_debug,
            )
            self.lanes, self.name = parts.lanes, parts.name
            self.rollouts, self.person = parts.rollouts, parts.person
            self.loop = self.lanes[0].loop
            self._env = self.loop.env
            kept = cfg.path_of_run(model_path, "MODEL_PATH_WORKER")
            parts.load_policy(kept, is_needed=standalone)
            if not standalone:
                history = cfg.path_of_run(model_path_history, "MODEL_PATH_SAVE_HISTORY")
                self.link = parts.connect(server_ip, kept, history)
            self._closing = closing.pop_all()
        script.close_at_exit(self, turn=0)

    @property
    def env(self) -> Any:
        """The environment; replaced after a fault."""
        return self._env.env

    @property
    def actor(self) -> Actor:
        """The instance that acts now; replaced with each policy that arrives."""
        return self.loop.driver.actor

    @property
    def policy_version(self) -> int:
        """Version of the weights in use; 0: never updated."""
        return self.loop.counts.policy_version

    @property
    def _has_policy(self) -> bool:
        """Whether every lane has a policy."""
        return all(lane.loop.driver.received_at for lane in self.lanes)

    @property
    def _where(self) -> str:
        """The server's address, for messages."""
        return "" if self.link is None else self.link.server

    def condition(self) -> Condition:
        """Return the worker's condition, merged over its lanes. Any thread.

        Figures that only the link knows are in `link.status`.
        """
        return condition_of(self.lanes)

    def run(
        self,
        test_episode_interval: int = 0,
        nb_episodes: float = math.inf,
        verbose: bool = True,
        expert: bool = False,
    ) -> None:
        """Collect training episodes, endlessly or `nb_episodes` of them. Ctrl-C ends it cleanly.

        Samples leave and weights arrive during episodes as well as between them.

        Args:
            test_episode_interval: run a test episode before every k-th training episode, with
                `act(test=True)` and without training samples; 0: none.
            nb_episodes: number of training episodes.
            verbose: log every episode, not only test episodes.
            expert: act as an expert: send samples, ignore new weights, run no test episodes.

        Raises:
            RefusedError, CredentialsError: the server does not accept this worker.
            EnvironmentFaultError: the environment keeps failing.
        """
        self.be_expert(expert)
        interval = 0 if expert else test_episode_interval
        plan = Plan(
            self.lanes, nb_episodes=nb_episodes, test_episode_interval=interval, verbose=verbose
        )
        self._run_until_stopped(plan)

    def be_expert(self, expert: bool) -> None:
        """Ignore policies from now on, as an expert, or accept them again."""
        for lane in self.lanes:
            lane.loop.be_expert(expert)

    def run_episodes(
        self,
        max_samples_per_episode: float | None = None,
        nb_episodes: float = math.inf,
        train: bool = False,
    ) -> list[EpisodeStats]:
        """Run episodes without sending samples, e.g. for deployment.

        Args:
            max_samples_per_episode: as in the constructor; None: the constructor's value.
            nb_episodes: number of episodes; `math.inf` runs until Ctrl-C.
            train: explore (`act(test=False)`).

        Returns:
            The statistics of all episodes.
        """
        stats: list[EpisodeStats] = []
        plan = Plan(
            self.lanes[:1],
            test=not train,
            collect=False,
            verbose=True,
            max_samples=max_samples_per_episode,
            nb_episodes=nb_episodes,
            on_episode=stats.append,
        )
        self._run_until_stopped(plan)
        return stats

    def run_episode(
        self,
        max_samples: float | None = None,
        train: bool = False,
        after_step: Callable[[], None] | None = None,
    ) -> EpisodeStats:
        """Run one episode without sending samples; its return is still reported to the trainer, as
        that of a test unless `train`.

        Args:
            max_samples: as `max_samples_per_episode` of the constructor; None: the constructor's
                value.
            train: explore (`act(test=False)`).
            after_step: called after each step, in the environment's thread.

        Raises:
            StoppedError: `stop` was called.
            EnvironmentFaultError: the environment cannot be made again.
        """
        how = Plan(
            self.lanes[:1],
            test=not train,
            collect=False,
            max_samples=max_samples,
            after_step=after_step,
        )
        return self._run_one(how)

    def collect_train_episode(self, max_samples: float | None = None) -> EpisodeStats:
        """Run one episode with exploration, and send its samples."""
        return self._run_one(Plan(self.lanes[:1], max_samples=max_samples))

    def run_synchronous(
        self,
        test_episode_interval: int = 0,
        nb_steps: float = math.inf,
        initial_steps: int = 1,
        max_steps_per_update: None = None,
        end_episodes: bool = True,
        verbose: bool = False,
    ) -> None:
        """Collect in lockstep with the trainer: each environment step allows a fixed number of
        training steps. Not for real-time environments.

        The ratio is the trainer's `max_training_steps_per_env_step`. In each environment, the
        training steps of one environment step may still be pending while the next one is under way;
        at the end, none are pending. If the trainer is away, the worker waits for it.

        Args:
            test_episode_interval: run a test episode before every k-th training episode; its steps
                do not count. 0: none.
            nb_steps: total number of steps to collect after the initial ones; episodes under way
                are finished.
            initial_steps: number of steps to collect before the first wait.
            max_steps_per_update: no longer supported; it keeps the positions of the arguments after
                it.
            end_episodes: wait for the trainer only between episodes, until no training step is
                pending.
            verbose: log every episode.

        Raises:
            ConfigError: the environment runs in real time, or `max_steps_per_update` is given.
        """
        if max_steps_per_update is not None:
            raise ConfigError(
                f"run_synchronous takes no max_steps_per_update; {GONE['max_steps_per_update']}"
            )
        self._refuse_real_time()
        plan = Plan(
            self.lanes,
            nb_steps=nb_steps,
            initial_steps=initial_steps,
            test_episode_interval=test_episode_interval,
            waits="episodes" if end_episodes else "steps",
            verbose=verbose,
        )
        self._run_until_stopped(plan)

    def steps(self, test_episode_interval: int = 0, verbose: bool = False) -> Iterator[None]:
        """Collect training episodes endlessly, one environment step per value.

        The environments take turns, and stand still until the next value is requested.

        Raises:
            ConfigError: the environment runs in real time.
            EnvironmentFaultError: an environment keeps failing.
        """
        self._refuse_real_time()
        plan = Plan(self.lanes, test_episode_interval=test_episode_interval, verbose=verbose)
        for steps in itertools.cycle([lane.steps(plan) for lane in self.lanes]):
            yield next(steps)

    def _refuse_real_time(self) -> None:
        if self._env.time_step_s:
            raise ConfigError(
                f"the environment runs in real time (time-step of {self._env.time_step_s * 1e3:g} "
                "ms), and synchronous collection would let it run on without an action while it "
                "waits for the trainer: use `run` (in an experiment: worker.synchronous: false)"
            )

    def _run_until_stopped(self, plan: Plan) -> None:
        try:
            self._run(plan, self._tuned)
        except (KeyboardInterrupt, StoppedError):
            log.info("stopped")
        finally:
            if self.link is not None:
                self.link.send(Hasten())

    def _run_one(self, plan: Plan) -> EpisodeStats:
        stats: list[EpisodeStats] = []
        plan.nb_episodes, plan.on_episode = 1, stats.append
        self._run(plan, lambda control: contextlib.nullcontext())
        return stats[0]

    def _run(
        self, plan: Plan, tuned: Callable[[int], contextlib.AbstractContextManager[None]]
    ) -> None:
        """Run the lanes of a plan, the first one in this thread; `tuned` as in `Lane.drive`."""
        failures: list[BaseException] = []

        def drive(lane: Lane, is_over: threading.Event) -> None:
            try:
                lane.drive(plan, tuned)
            except BaseException as error:  # the other lanes stop as well
                failures.append(error)
                self.stop()
            finally:
                is_over.set()

        ended = ""
        # set when a lane is over: an interrupted `Thread.join` takes its thread for ended
        others: list[threading.Event] = []
        self._runner = threading.current_thread()
        self._idle.clear()
        self._note(awaits=plan.waits != "never")
        if self.link is not None:
            self.link.send(self.condition())
        try:
            self._await_policy()
            if self.link is not None and plan.waits != "never":
                # before the link knows, it sends samples as not awaited, and the trainer would
                # train on them without lockstep
                while not self.link.status.awaits:
                    self.loop.check_running()
                    time.sleep(_LOOK_S)
            for number, lane in enumerate(plan.lanes[1:], start=2):
                is_over = threading.Event()
                start_thread(partial(drive, lane, is_over), f"tmrl-lane-{number}")
                others.append(is_over)
            drive(plan.lanes[0], threading.Event())
            for is_over in others:
                # a wait without a limit cannot be interrupted by Ctrl-C on Windows
                while not is_over.wait(0.25):
                    pass
            if failures:
                raise failures[0]
        except BaseException as error:
            self.stop()
            if not isinstance(error, StoppedError | KeyboardInterrupt):
                ended = one_line(error)
            raise
        finally:
            for is_over in others:
                is_over.wait()
            self.loop.release()
            self._note(ended)
            self._idle.set()
            self._forget_stop()

    def _forget_stop(self) -> None:
        """Let the next run go on, unless the worker is closed."""
        if not self._closed:
            for lane in self.lanes:
                lane.env.stopping.clear()

    def _note(self, ended: str = "", awaits: bool = False) -> None:
        """Record what ended a run, or that one begins, for remote trainers and for a trainer in
        this script.
        """
        self.loop.counts.ended, self.loop.counts.awaits = ended, awaits
        script.failures[self._where] = ended

    def _tuned(self, control: int) -> contextlib.AbstractContextManager[None]:
        """Return a context with the real-time options of a long run, for the thread with native id
        `control`, which steps an environment.
        """
        links = [
            thread.native_id
            for thread in threading.enumerate()
            if thread.name.startswith("tmrl-link")
        ]
        helpers, options = [threading.get_native_id(), *filter(None, links)], self._options
        return real_time(
            control, helpers, priority=options.realtime_priority, cpu_affinity=options.cpu_affinity
        )

    def run_in_control_thread(self, call: Callable[[], _T]) -> _T:
        """Call `call` in the thread in which the environment lives, and return its result.

        Raises:
            EnvironmentFaultError: the environment raised, or did not return in time.
        """
        self._env.revive()
        return self._env.run(call)

    def _await_policy(self) -> None:
        """Wait for a policy, if the options ask for it; warn if hardware would move without one."""
        driver = self.loop.driver
        if driver.is_expert or self._has_policy:
            return
        if self._options.wait_for_policy and self.link is not None:
            log.info(
                "%s holds still until a policy arrives from %s (wait_for_policy)",
                self.name,
                self._where,
            )
            while not self._has_policy:
                self.loop.check_running()
                time.sleep(_LOOK_S)
                for lane in self.lanes:
                    lane.loop.driver.refresh()
            log.info("acting with policy %d", self.policy_version)
        elif self._env.moves_hardware and driver.expires_at == math.inf and not self._has_warned:
            self._has_warned = True
            log.warning(
                "an untrained policy is about to move hardware: with wait_for_policy the worker "
                "holds still until one has arrived from the trainer; without a trainer, give it "
                "weights (model_path)"
            )

    def run_env_benchmark(self, nb_steps: int, test: bool = False, verbose: bool = True) -> Info:
        """Measure the environment's time-steps with the actor in the loop.

        Args:
            nb_steps: number of steps.
            test: whether the actor acts as in a test.
            verbose: log the result.

        Returns:
            Percentiles in milliseconds, overruns and, under "rtgym", the result of rtgym's own
            benchmark if the environment was configured with it.
        """
        in_range("nb_steps", nb_steps, Positive)
        result = self.measure(int(nb_steps), test).summary()
        if getattr(self.env.unwrapped, "benchmark", False):
            result["rtgym"] = self.env.unwrapped.benchmarks()
        if verbose:
            log.info("environment benchmark: %s", result)
        return result

    def measure(self, max_steps: int, test: bool = False) -> StepTimes:
        """Measure the times of `max_steps` steps with the actor in the loop; `stop` ends it early.

        No samples are collected. With `test` the actor acts as in a test.
        """
        try:
            self._await_policy()
            with self._tuned(self._env.thread_id):
                return self.run_in_control_thread(lambda: measure(self.loop, max_steps, test))
        finally:
            self._forget_stop()

    # -- weights, by hand --------------------------------------------------------------------------

    def use_weights(self, weights: Weights, version: int) -> None:
        """Act with these weights from now on; they come from a trainer in this thread."""
        for lane in self.lanes:
            lane.loop.driver.use_weights(weights, version)

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until the server lets this worker in; return whether it has.

        Raises:
            TransportError: a standalone worker has no connection.
            RefusedError, CredentialsError: the server does not accept this worker.
        """
        if self.link is None:
            raise TransportError("a standalone worker has no connection")
        return wait_checking(self.link.connected, timeout_s, self.loop.check)

    def stop(self) -> None:
        """End the current (or next) run after its current step. Any thread, or a signal handler."""
        for lane in self.lanes:
            lane.env.stopping.set()

    def close(self) -> None:
        """Send the remaining samples, leave the server, and close the environment. Calling it twice
        is fine.
        """
        self._closed = True
        self.stop()
        if threading.current_thread() is not self._runner:
            self._idle.wait(1.5)
        self.loop.counts.ended = self.loop.counts.ended or "it was closed"
        self.loop.release()
        self._closing.close()

    def __enter__(self) -> RolloutWorker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
