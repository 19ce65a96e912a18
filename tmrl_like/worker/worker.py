"""The rollout worker: acts in the environment, in real time, and lets nothing else wait in that
thread.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

import gymnasium

import tmrl_like.config.config_constants as cfg
from tmrl_like.base import script
from tmrl_like.base.gone import GONE
from tmrl_like.base.options import refuse_unknown, with_given
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.config.paths import RunPath, RunPaths
from tmrl_like.config.run_lock import use_run
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv
from tmrl_like.errors import ConfigError, TransportError
from tmrl_like.policies.acting import Actor
from tmrl_like.policies.weight_file import Weights
from tmrl_like.types import Action, EpisodeStats, Observation, ObsPreprocessor, SampleCompressor
from tmrl_like.wire.condition import Condition, of_worker
from tmrl_like.worker.control_loop import Info, Stepped
from tmrl_like.worker.lane import Lane, Plan
from tmrl_like.worker.link_client import LinkClient
from tmrl_like.worker.link_messages import Hasten
from tmrl_like.worker.options import WorkerKeywords, WorkerOptions
from tmrl_like.worker.parts import Parts
from tmrl_like.worker.realtime import real_time
from tmrl_like.worker.timing import StepTimes, measure

log = logging.getLogger("tmrl_like.worker")

_T = TypeVar("_T")
_MAX_REASON = 1000


class RolloutWorker:
    """Drives an environment with the newest policy and sends the samples to the server.

    The environment lives in a thread of its own, which acts, steps and appends while the caller of
    `run` waits. With `options.envs` there are several, each with a thread and episodes of its own,
    and one policy; single episodes and test episodes are the first one's. Encoding, sending,
    receiving and checking weights, and writing them to disk happen in a process of its own, the
    link, which this one starts, and starts again if it ends. An environment that raises or hangs is
    closed and made again. Construction connects and collects nothing. Use it as a context manager,
    or call `close`; one that is still open when the script ends is closed then.

    Attributes:
        lanes: the environments, each with its control loop.
        loop: the first control loop, with the supervised environment (`env`) and what chooses its
            actions (`driver`). To look at, from any thread.
        link: the worker's end of its link, with what is known of the connection (`status`); None:
            it has none.
        rollouts: what calls `on_rollout`, with its count of dropped episodes; None: nobody asked
            for them.
        person: who judges the first environment's episodes, and hears what a script says in their
            place; None: nobody.
        name: this worker's.
        standalone: whether it has no connection.
    """

    def __init__(
        self,
        env_cls: Callable[[], gymnasium.Env],
        actor_module_cls: Callable[..., Actor],
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
        options: WorkerOptions | None = None,
        **keywords: Unpack[WorkerKeywords],
    ) -> None:
        """Make environment and actor, and connect (without waiting for the server).

        Args:
            env_cls: makes the environment, e.g. `partial(GenericGymEnv, id=…, gym_kwargs=…)`.
            actor_module_cls: makes the actor from `observation_space` and `action_space`.
            sample_compressor: (act, obs, rew, terminated, truncated, info) -> the same six,
                reduced; runs before sending. None sends samples as they are.
            device: as in `options`, in place of what is there.
            server_ip: the server's address, or those of several that have one key pair: the worker
                dials one of them, and the next one when that is away. Each may have a port of its
                own, "a.example:7791". None: `cfg.SERVER_IP_FOR_WORKER`, which is this machine
                unless set.
            min_samples_per_worker_packet: as `outbox.min_samples` in `options`: no packet leaves
                with fewer samples.
            max_samples_per_episode: likewise.
            model_path: weights are loaded from there now, if the file exists, and the newest are
                kept there; a file that is damaged is put aside. Left out: the run's file
                (`cfg.MODEL_PATH_WORKER`); None: neither.
            obs_preprocessor: applied to each observation right before the actor sees it.
            crc_debug: send the original with every sample, for a memory with `crc_debug=True` to
                compare.
            model_path_history: prefix of the files that `model_history` keeps; left out: the run's
                (`cfg.MODEL_PATH_SAVE_HISTORY`); None: none are kept.
            model_history: likewise.
            standalone: no connection; the actor acts with the weights from `model_path`.
            options: how it runs; None: the defaults, and `cfg.MODEL_HISTORY`.
            keywords: what is seldom said, see `WorkerKeywords`, and how the server is reached, see
                `Dial`. Without a name, a worker with a spool has that of the first folder in it
                that no process uses.

        Raises:
            CredentialsError: this machine's key cannot be read.
            PolicyError: the weights at `model_path` do not fit the actor, or are not fit to act.
            EnvironmentFaultError, ConfigError: the environment cannot be made.
            ConfigError: an argument is out of range or not known, or the spool cannot be used.
            MemoryContractError: the compressor does not take the six items of a sample.
            ShortageError: the system gives it no threads, or no process for its link.
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
        self.link: LinkClient | None = None
        self._has_warned = self._closed = False
        self._idle = threading.Event()  # no run is under way
        self._idle.set()
        self._runner: threading.Thread | None = None
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
                self.link = parts.connect(self.condition, server_ip, kept, history)
            self._closing = closing.pop_all()
        script.close_at_exit(self, turn=0)

    @property
    def env(self) -> Any:
        """The environment; another one after a fault."""
        return self._env.env

    @property
    def actor(self) -> Actor:
        """The instance that acts; another one after each policy that arrived."""
        return self.loop.driver.actor

    @property
    def policy_version(self) -> int:
        """Version of the weights that act; 0: never updated."""
        return self.loop.counts.policy_version

    @property
    def _where(self) -> str:
        """The servers, for messages."""
        return "" if self.link is None else ", ".join(self.link.servers)

    def condition(self) -> Condition:
        """How the worker is, over all its lanes; what only the link knows is in `link.status`. Any
        thread.
        """
        return of_worker([lane.loop.condition() for lane in self.lanes])

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
            test_episode_interval: a test episode before every k-th training episode:
                `act(test=True)`, no training samples; 0: none.
            nb_episodes: number of training episodes.
            verbose: log every episode, not only the test episodes.
            expert: send samples, ignore weights, run no test episodes.

        Raises:
            RefusedError, CredentialsError: the server does not take this worker.
            EnvironmentFaultError: the environment fails again and again.
        """
        self.be_expert(expert)
        interval = 0 if expert else test_episode_interval
        plan = Plan(
            self.lanes, nb_episodes=nb_episodes, test_episode_interval=interval, verbose=verbose
        )
        self._run_until_stopped(plan)

    def be_expert(self, expert: bool) -> None:
        """Ignore policies that arrive from now on, or no more: samples are an expert's then."""
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
            max_samples_per_episode: as in the constructor; None: the constructor's.
            nb_episodes: how many; `math.inf` runs until Ctrl-C.
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
        """Run one episode without sending samples; its return is reported to the trainer as a test.

        Args:
            max_samples: as in the constructor; None: the constructor's.
            train: explore (`act(test=False)`).
            after_step: called after each step, in the environment's thread.
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
        """Run one episode, exploring, and send its samples."""
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
        """Collect in lockstep with the trainer: a step allows so many training steps. Not for
        real-time environments.

        The ratio is the trainer's, `max_training_steps_per_env_step`. Of each environment the
        training steps of one environment step may wait while the next one is under way. At the end
        none is left. A trainer that is away is waited for.

        Args:
            test_episode_interval: a test episode before every k-th training episode; its steps do
                not count; 0: none.
            nb_steps: steps to collect in all, after the initial ones; episodes are finished.
            initial_steps: steps to collect before the first wait.
            max_steps_per_update: gone; it keeps the place of its successors.
            end_episodes: wait only between episodes.
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
        """Collect training episodes without end, in lockstep, in the thread that takes the values.

        Each value is one environment step, of the environments in turn. For a worker whose
        environments have no thread of their own (`own_thread: false`) and whose trainer lives in
        this thread as well (`run_in_process`).

        Raises:
            ConfigError: the environment runs in real time.
            EnvironmentFaultError: it fails again and again.
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
            log.info("stopped by the user")
        finally:
            self.send_and_clear_buffer()

    def _run_one(self, plan: Plan) -> EpisodeStats:
        stats: list[EpisodeStats] = []
        plan.nb_episodes, plan.on_episode = 1, stats.append
        self._run(plan, lambda control: contextlib.nullcontext())
        return stats[0]

    def _run(
        self, plan: Plan, tuned: Callable[[int], contextlib.AbstractContextManager[None]]
    ) -> None:
        """Have each lane do its part, the first one in this thread; `tuned` as `Lane.drive`'s."""
        failures: list[BaseException] = []

        def drive(lane: Lane) -> None:
            try:
                lane.drive(plan, tuned)
            except BaseException as error:  # the others stop as well
                failures.append(error)
                self.stop()

        ended = ""
        others: list[threading.Thread] = []
        self._runner = threading.current_thread()
        self._idle.clear()
        self._note(awaits=plan.waits != "never")
        if self.link is not None:
            self.link.send(self.condition())
        try:
            self._await_policy()
            for number, lane in enumerate(plan.lanes[1:], start=2):
                others.append(start_thread(partial(drive, lane), f"tmrl-lane-{number}"))
            drive(plan.lanes[0])
            for thread in others:
                # a wait without a limit cannot be interrupted by Ctrl-C on Windows
                while thread.is_alive():
                    thread.join(0.25)
            if failures:
                raise failures[0]
        except (StoppedError, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.stop()
            ended = one_line(error, _MAX_REASON)
            raise
        finally:
            for thread in others:
                thread.join()
            self.loop.release()
            self._note(ended)
            self._idle.set()
            if not self._closed:
                for lane in self.lanes:
                    lane.env.stopping.clear()

    def _note(self, ended: str = "", awaits: bool = False) -> None:
        """Let trainers know what ended a run, or that one begins: one elsewhere, and one in this
        script.
        """
        self.loop.counts.ended, self.loop.counts.awaits = ended, awaits
        script.failures[self._where] = ended

    def _tuned(self, control: int) -> contextlib.AbstractContextManager[None]:
        """What a long run asks of system and Python, for the thread that steps an environment."""
        links = [
            thread.native_id
            for thread in threading.enumerate()
            if thread.name.startswith("tmrl-link")
        ]
        helpers, options = [threading.get_native_id(), *filter(None, links)], self._options
        return real_time(
            control, helpers, priority=options.realtime_priority, cpu_affinity=options.cpu_affinity
        )

    def run_in_control_thread(self, call: Callable[[SupervisedEnv], _T]) -> _T:
        """Let a call of yours use the environment, in the thread in which it lives; returns what
        the call does.

        Raises:
            EnvironmentFaultError: the environment raised, or did not come back in time.
        """
        self._env.revive()
        return self._env.run(partial(call, self._env))

    def _await_policy(self) -> None:
        """Hold still until there is a policy, where that is asked for; warn of hardware that moves
        without one.
        """
        driver = self.loop.driver
        if driver.has_policy or driver.is_expert:
            return
        if self._options.wait_for_policy and not self.standalone:
            log.info(
                "%s holds still until a policy arrives from %s (wait_for_policy)",
                self.name,
                self._where,
            )
            self.update_actor_weights(blocking=True)
            if self._env.stopping.is_set():
                raise StoppedError
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
            nb_steps: how many steps.
            test: whether the actor acts as in a test.
            verbose: log the result.

        Returns:
            Percentiles in milliseconds, overruns, and under "rtgym" what rtgym's own benchmark
            says, where the environment was configured with it.
        """
        if not 0 < nb_steps < math.inf:
            raise ConfigError(f"nb_steps is {nb_steps}; it must be a positive number")
        result = self.measure(nb_steps, test).summary()
        if getattr(self.env.unwrapped, "benchmark", False):
            result["rtgym"] = self.env.unwrapped.benchmarks()
        if verbose:
            log.info("environment benchmark: %s", result)
        return result

    def measure(self, max_steps: int, test: bool = False) -> StepTimes:
        """Measure so many steps, or until `stop`, with the actor in the loop (as in a `test`); none
        become samples.
        """
        self._await_policy()
        with self._tuned(self._env.thread_id):
            return self.run_in_control_thread(lambda _: measure(self.loop, max_steps, test))

    def act(self, obs: Observation, test: bool = False) -> Action:
        """Choose an action for a raw observation."""
        return self.loop.driver.act(obs, test)

    def reset(self, collect_samples: bool) -> tuple[Observation, Info]:
        """Start an episode, whose first observation becomes a sample if `collect_samples`; returns
        it and info.
        """
        self._await_policy()
        return self.run_in_control_thread(lambda _: self.loop.reset(collect_samples))

    def step(
        self, obs: Observation, test: bool, collect_samples: bool, last_step: bool = False
    ) -> Stepped:
        """Act on `obs` and do one environment step; returns what `gymnasium.Env.step` does, and the
        actor's `extras` in `info`.

        Args:
            obs: the newest observation.
            test: passed to the actor.
            collect_samples: whether the result becomes a sample.
            last_step: cut the episode here (`truncated=True`) if it does not terminate by itself.
        """
        return self.run_in_control_thread(
            lambda _: self.loop.step(obs, test, collect_samples, last_step)
        )

    # -- weights and samples, by hand --------------------------------------------------------------

    def send_and_clear_buffer(self) -> None:
        """Let the samples collected so far leave now; does not wait."""
        if self.link is not None:
            self.link.send(Hasten())

    def use_weights(self, weights: Weights, version: int) -> None:
        """Act with these weights of a trainer in this thread (`run_in_process`) from now on."""
        for lane in self.lanes:
            lane.loop.driver.use_weights(weights, version)

    def update_actor_weights(self, verbose: bool = True, blocking: bool = False) -> int:
        """Act with the newest weights from now on (`run` does so by itself).

        Args:
            verbose: log it.
            blocking: wait for new weights if there are none.

        Returns:
            1 if there were new weights, else 0.
        """
        while (
            blocking
            and not self.lanes[0].intake.wait_for_new(0.2)
            and not self._env.stopping.is_set()
        ):
            self._check()
        changed = max(lane.loop.driver.refresh() for lane in self.lanes)
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
        if threading.current_thread() is not self._runner:
            self._idle.wait(1.5)
        self.loop.counts.ended = self.loop.counts.ended or "it was closed"
        self.loop.release()
        self._closing.close()

    def __enter__(self) -> RolloutWorker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if self.link is not None:
            self.link.check()
