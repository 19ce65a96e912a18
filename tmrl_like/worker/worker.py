"""The rollout worker: acts in the environment, in real time, and lets nothing else wait in that thread."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

import tmrl_like.config.config_constants as cfg
from tmrl_like.base.script import close_at_exit, note_end_of_run
from tmrl_like.base.text import one_line
from tmrl_like.config.paths import RunPath
from tmrl_like.delivery.folder import new_worker_name, open_folder
from tmrl_like.delivery.outbox import Outbox, OutboxOptions
from tmrl_like.delivery.session import Session
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv
from tmrl_like.errors import ConfigError, EnvironmentFaultError, TransportError
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.intake import PolicyFiles, PolicyIntake
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.transport import KeyFolder, TransportOptions, connect
from tmrl_like.types import EpisodeStats, ObsPreprocessor, SampleCompressor
from tmrl_like.wire.spaces import describe_spaces
from tmrl_like.worker.control_loop import ControlLoop
from tmrl_like.worker.dead_man import DeadMan, to_action
from tmrl_like.worker.link import WorkerRole
from tmrl_like.worker.realtime import RealTime

log = logging.getLogger("tmrl_like.worker")


_T = TypeVar("_T")
_MAX_REASON = 1000


@dataclass(frozen=True, kw_only=True)
class _Order:
    """An episode to run."""

    test: bool
    collect: bool
    verbose: bool = False
    max_samples: float | None = None
    after_step: Callable[[], None] | None = None


class RolloutWorker:
    """Drives an environment with the newest policy and sends the samples to the server.

    The environment lives in a thread of its own, which acts, steps and appends while the caller of `run`
    waits. Encoding, sending, receiving and loading weights, and writing them to disk happen in the
    connection's thread. An environment that raises or hangs is closed and made again.
    Construction connects and collects nothing. Use it as a context manager, or call `close`; one that is still open
    when the script ends is closed then.
    """

    def __init__(
        self,
        env_cls: Callable[[], Any],
        actor_module_cls: Callable[..., ActorModule],
        sample_compressor: SampleCompressor | None = None,
        device: str = "cpu",
        server_ip: str | None = None,
        min_samples_per_worker_packet: int = 1,
        max_samples_per_episode: float = math.inf,
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
        outbox: OutboxOptions | None = None,
        spool_dir: str | Path | None = None,
        options: TransportOptions | None = None,
        realtime_priority: int | None = None,
        cpu_affinity: Sequence[int] | None = None,
        hang_timeout_s: float = 30.0,
        own_thread: bool = True,
        max_policy_age_s: float = math.inf,
        safe_action: Any = None,
    ) -> None:
        """Make environment and actor, and connect (without waiting for the server).

        Args:
            env_cls: makes the environment, e.g. `partial(GenericGymEnv, id=…, gym_kwargs=…)`.
            actor_module_cls: makes the actor from `observation_space` and `action_space`.
            sample_compressor: (act, obs, rew, terminated, truncated, info) -> the same six, reduced; runs
                before sending. None sends samples as they are.
            device: where the actor runs.
            server_ip: the server's address; None: `cfg.SERVER_IP_FOR_WORKER`, which is this machine unless set.
            min_samples_per_worker_packet: no packet leaves with fewer samples; with `outbox` the larger minimum counts.
            max_samples_per_episode: a longer episode is cut with `truncated=True`.
            model_path: weights are loaded from there now, if the file exists, and the newest are kept there; left out:
                the run's file (`cfg.MODEL_PATH_WORKER`); None: neither.
            obs_preprocessor: applied to each observation right before the actor sees it.
            crc_debug: send the original with every sample, for a memory with `crc_debug=True` to compare.
            model_path_history: prefix of the files that `model_history` keeps; left out: the run's
                (`cfg.MODEL_PATH_SAVE_HISTORY`); None: none are kept.
            model_history: keep every k-th policy received; 0: none; None: `cfg.MODEL_HISTORY`, which is 0 unless set.
            standalone: no connection; the actor acts with the weights from `model_path`.
            server_port: the server's port; None: `cfg.PORT`, which is 7790 unless set.
            transport: "zmq", "tlspyo" or "inproc"; the server's.
            keys_dir: where this machine's key is; None: `cfg.KEYS_FOLDER`.
            name: unique among workers; None: made from host and process or, with a spool, that of the first
                folder in it that no process uses.
            outbox: when packets leave and how much is kept for a server that is away.
            spool_dir: folder where samples are also kept until they are stored, so that they outlive this
                process; workers of one machine may share it. None: they are kept in memory alone.
            options: limits of the transport.
            realtime_priority: of the real-time class (1 to 99) for the thread that steps the environment; None: the
                ordinary class. What is not permitted is logged, and the worker runs without.
            cpu_affinity: processors for that thread; None: all.
            hang_timeout_s: a step or reset that takes longer is a fault, and the environment is rebuilt.
            own_thread: let the environment live in a thread of its own. Without, it lives in the thread that
                calls, which some windows need (on macOS: the main thread), and a hang is only reported.
            max_policy_age_s: for how long after it was received (by this worker's clock) a policy may drive. After
                that, and before there is any, `safe_action` drives. Neither experts nor standalone workers have
                a limit. `math.inf`: no limit, and the untrained actor explores until a policy comes.
            safe_action: drives instead of a policy that is too old or missing, and of an action that is not
                finite; None: the environment's default action.

        Raises:
            CredentialsError: this machine's key cannot be read.
            PolicyError: the weights at `model_path` do not fit the actor, or are not fit to act.
            EnvironmentFaultError, ConfigError: the environment cannot be made.
            ConfigError: an argument is out of range, or the spool cannot be used.
            MemoryContractError: the compressor does not take the six items of a sample.
        """
        weights = cfg.path_of_run(model_path, "MODEL_PATH_WORKER")
        history = cfg.path_of_run(model_path_history, "MODEL_PATH_SAVE_HISTORY")
        model_history = cfg.MODEL_HISTORY if model_history is None else model_history
        _check_arguments(min_samples_per_worker_packet, max_samples_per_episode, model_history, max_policy_age_s)
        self._actor_module_cls = actor_module_cls
        self._device = device
        self._realtime = RealTime(realtime_priority, cpu_affinity)
        self._env = SupervisedEnv(env_cls, hang_timeout_s, own_thread)
        with contextlib.ExitStack() as undo:  # what a failure below must not leave behind
            undo.callback(self._env.close)
            dead_man = self._make_dead_man(math.inf if standalone else max_policy_age_s, safe_action)
            actor = self._make_actor()
            probe = PolicyProbe(self.env.observation_space, self.env.action_space, obs_preprocessor)
            self._intake = PolicyIntake(self._make_actor, probe)
            if weights is not None and weights.is_file():
                self._intake.load_file(actor, weights)
                dead_man.renew(time.perf_counter())
                log.info("loaded weights from %s", weights)
            self.standalone = standalone
            outbox = outbox or OutboxOptions()
            outbox = replace(outbox, min_samples=max(outbox.min_samples, min_samples_per_worker_packet))
            folder = (
                None if spool_dir is None or standalone else open_folder(Path(spool_dir), name, outbox.spool_max_bytes)
            )
            self.name = name or (folder.worker if folder else new_worker_name())
            self._files = PolicyFiles(weights, history, model_history)
            self._outbox = Outbox(self.name, crc_debug, outbox, folder)
            undo.callback(self._outbox.close)
            self._loop = ControlLoop(
                self._env,
                actor,
                self._intake,
                self._outbox,
                self.name,
                dead_man,
                sample_compressor,
                obs_preprocessor,
                max_samples_per_episode,
                crc_debug,
                self._check,
            )
            self._closed = False
            self._idle = threading.Event()  # no run is under way
            self._idle.set()
            self._runner: threading.Thread | None = None
            self._session: Session | None = None
            self._where = ""
            if not standalone:
                self._connect(server_ip, server_port, transport, keys_dir, options)
            undo.pop_all()
        close_at_exit(self, turn=0)

    def _connect(
        self,
        host: str | None,
        port: int | None,
        transport: str,
        keys_dir: str | Path | None,
        options: TransportOptions | None,
    ) -> None:
        host, port = host or cfg.SERVER_IP_FOR_WORKER, cfg.PORT if port is None else port
        self._where = f"{host}:{port}"
        link = connect(transport, host, port, KeyFolder(Path(keys_dir or cfg.KEYS_FOLDER)), options)
        spaces = describe_spaces(self.env.observation_space, self.env.action_space)
        self._session = Session(
            link,
            self._where,
            WorkerRole(self._loop, self._outbox, self._intake, self._files, self.name),
            "worker",
            self.name,
            spaces,
            self._files.path,
            self._outbox.incarnation,
            self._outbox.takes_over,
        )

    @property
    def env(self) -> Any:
        """The environment; another one after a fault."""
        return self._env.env

    @property
    def actor(self) -> ActorModule:
        """The instance that acts; another one after each policy that arrived."""
        return self._loop.actor

    @property
    def policy_version(self) -> int:
        """Version of the weights that act; 0: never updated."""
        return self._loop.policy_version

    @property
    def env_steps(self) -> int:
        """Environment steps since construction."""
        return self._loop.env_steps

    @property
    def safe_steps(self) -> int:
        """Steps that the safe action drove since construction."""
        return self._loop.dead_man.safe_steps

    @property
    def overruns(self) -> int:
        """Time-steps that missed their deadline since construction."""
        return self._loop.overruns

    @property
    def time_step_s(self) -> float:
        """Nominal duration of a time-step; 0 where the environment does not run in real time."""
        return self._env.time_step_s

    @property
    def env_faults(self) -> int:
        """How often the environment broke off an episode, or could not be rebuilt, since construction."""
        return self._env.faults

    @property
    def env_rebuilds(self) -> int:
        """How often the environment was rebuilt since construction."""
        return self._env.rebuilds

    def _make_actor(self) -> ActorModule:
        actor = self._actor_module_cls(observation_space=self.env.observation_space, action_space=self.env.action_space)
        return actor.to_device(self._device)

    def _make_dead_man(self, max_policy_age_s: float, safe_action: Any) -> DeadMan:
        if safe_action is None:
            return DeadMan(max_policy_age_s, lambda: self._env.default_action)
        action = to_action(safe_action, self.env.action_space)
        return DeadMan(max_policy_age_s, lambda: action)

    @property
    def is_expert(self) -> bool:
        """Whether weights that arrive are ignored, and samples are marked as an expert's; `run` sets it."""
        return self._loop.expert

    @is_expert.setter
    def is_expert(self, expert: bool) -> None:
        self._loop.expert = expert

    # -- running -------------------------------------------------------------------------------------

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
        self._loop.expert = expert

        def orders() -> Iterator[_Order]:
            for episode in _count_to(nb_episodes):
                if test_episode_interval and episode % test_episode_interval == 0 and not expert:
                    yield _Order(test=True, collect=False, verbose=True)
                yield _Order(test=False, collect=True, verbose=verbose)

        try:
            self._drive(orders())
        except (KeyboardInterrupt, StoppedError):
            log.info("stopped by the user")
        finally:
            self.send_and_clear_buffer()

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
        order = _Order(test=not train, collect=False, verbose=True, max_samples=max_samples_per_episode)
        try:
            self._drive((order for _ in _count_to(nb_episodes)), all_stats.append)
        except (KeyboardInterrupt, StoppedError):
            log.info("stopped by the user")
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
        return self._run_one(_Order(test=not train, collect=False, max_samples=max_samples, after_step=after_step))

    def collect_train_episode(self, max_samples: float | None = None) -> EpisodeStats:
        """Run one episode, exploring, and send its samples."""
        return self._run_one(_Order(test=False, collect=True, max_samples=max_samples))

    def run_synchronous(
        self,
        test_episode_interval: int = 0,
        nb_steps: float = math.inf,
        initial_steps: int = 1,
        max_steps_per_update: float = math.inf,
        end_episodes: bool = True,
        verbose: bool = False,
    ) -> None:
        """Collect steps, and wait for the trainer whenever it falls behind. Not for real-time environments.

        Args:
            test_episode_interval: a test episode before every k-th training episode; its steps do not count; 0: none.
            nb_steps: steps to collect in all, after the initial ones.
            initial_steps: steps to collect before the first wait.
            max_steps_per_update: steps to collect per policy received; above, collecting waits.
            end_episodes: wait only between episodes.
            verbose: log every episode.

        Raises:
            ConfigError: the environment runs in real time.
        """
        if self.time_step_s:
            raise ConfigError(
                f"the environment runs in real time (time-step of {self.time_step_s * 1e3:g} ms), and synchronous "
                "collection would let it run on without an action while it waits for the trainer: use `run` "
                "(in an experiment: worker.synchronous: false)"
            )
        start = self._loop.collected_steps
        received = self._intake.received

        def ahead() -> bool:
            steps = self._loop.collected_steps - start
            updates = self._intake.received - received
            return steps >= initial_steps and steps - initial_steps > max_steps_per_update * updates

        def wait_for_trainer() -> None:
            self._outbox.seal()
            while ahead():
                self._check()
                self._intake.wait_for_new(0.2)
                if self._env.stopping.is_set():
                    raise StoppedError
            self._loop.refresh_policy()

        after_step = None if end_episodes else wait_for_trainer

        def orders() -> Iterator[_Order]:
            for episode in itertools.count():
                if self._loop.collected_steps - start >= nb_steps + initial_steps:
                    return
                if test_episode_interval and episode % test_episode_interval == 0:
                    yield _Order(test=True, collect=False, verbose=True)
                yield _Order(test=False, collect=True, verbose=verbose, after_step=after_step)
                wait_for_trainer()

        try:
            self._drive(orders())
        except (KeyboardInterrupt, StoppedError):
            log.info("stopped by the user")
        finally:
            self.send_and_clear_buffer()

    def _in_real_time(self) -> contextlib.AbstractContextManager[None]:
        waiting = [threading.get_native_id()]
        links = [self._session.thread_id] if self._session is not None else []
        return self._realtime.applied(self._env.thread_id, waiting + links)

    def run_in_control_thread(self, call: Callable[[SupervisedEnv], _T]) -> _T:
        """Let a call of yours use the environment, in the thread in which it lives; returns what the call does.

        Raises:
            EnvironmentFaultError: the environment raised, or did not come back in time.
        """
        return self._in_control_thread(partial(call, self._env))

    def _in_control_thread(self, call: Callable[[], _T]) -> _T:
        self._env.revive()
        return self._env.run(call)

    def _run_one(self, order: _Order) -> EpisodeStats:
        stats: list[EpisodeStats] = []
        self._drive(iter([order]), stats.append, tuned=False)
        return stats[0]

    def _drive(
        self,
        orders: Iterator[_Order],
        on_episode: Callable[[EpisodeStats], None] | None = None,
        tuned: bool = True,
    ) -> None:
        """Run episodes, whatever the environment does.

        Args:
            orders: which; drawn from in the control thread.
            on_episode: called after each.
            tuned: with what is asked of the system and of Python for a long run.

        Raises:
            EnvironmentFaultError: it fails again and again.
            StoppedError: told to stop.
        """
        order = _Order(test=False, collect=False)

        def end(stats: EpisodeStats) -> None:
            if order.verbose:
                _report(stats)
            if on_episode is not None:
                on_episode(stats)

        def run_episodes() -> None:
            nonlocal order
            for order in orders:
                end(self._loop.run_episode(order.max_samples, order.test, order.collect, order.after_step))
                if self._env.stopping.is_set():
                    raise StoppedError

        self._runner = threading.current_thread()
        self._idle.clear()
        self._note_end(None)
        try:
            self._env.revive()
            while True:
                try:
                    with self._in_real_time() if tuned else contextlib.nullcontext():
                        return self._env.run(run_episodes)
                except EnvironmentFaultError as error:
                    end(self._loop.end_in_fault(str(error)))
                    self._env.rebuild(error)
        except (StoppedError, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._note_end(error)
            raise
        finally:
            self._idle.set()
            if not self._closed:
                self._env.stopping.clear()

    def _note_end(self, failure: BaseException | None) -> None:
        """Let trainers know what ended a run, or that one begins: one elsewhere, and one in this script."""
        reason = "" if failure is None else one_line(failure, _MAX_REASON)
        self._loop.ended = reason
        note_end_of_run(self._where, reason)

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
        overruns = self.overruns
        times = self._in_control_thread(partial(self._time_steps, nb_steps, test))
        result: dict[str, Any] = {"steps": nb_steps, "overruns": self.overruns - overruns}
        for name, column in zip(("period", "inference", "env_step"), np.array(times).T * 1e3, strict=True):
            for q in (50, 99, 99.9):
                result[f"{name}_p{q:g}_ms"] = round(float(np.percentile(column, q)), 3)
        if getattr(self.env.unwrapped, "benchmark", False):
            result["rtgym"] = self.env.unwrapped.benchmarks()
        if verbose:
            log.info("environment benchmark: %s", result)
        return result

    def _time_steps(self, nb_steps: int, test: bool) -> list[tuple[float, float, float]]:
        """Period, inference and environment's share of each step, in seconds."""
        times: list[tuple[float, float, float]] = []
        obs, _ = self._loop.reset(collect_samples=False)
        while len(times) < nb_steps:
            before = self._loop.observed_at
            obs, _, terminated, truncated, _ = self._loop.step(obs, test, collect_samples=False)
            times.append((self._loop.observed_at - before, self._loop.inference_s, self._loop.env_s))
            if terminated or truncated:
                obs, _ = self._loop.reset(collect_samples=False)
        return times

    # -- one step ------------------------------------------------------------------------------------

    def act(self, obs: Any, test: bool = False) -> Any:
        """Choose an action for a raw observation."""
        return self._loop.act(obs, test)

    def reset(self, collect_samples: bool) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Args:
            collect_samples: whether its first observation becomes a sample.

        Returns:
            Observation and info.
        """
        return self._in_control_thread(partial(self._loop.reset, collect_samples))

    def step(
        self, obs: Any, test: bool, collect_samples: bool, last_step: bool = False
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act on `obs` and do one environment step.

        Args:
            obs: the newest observation.
            test: passed to the actor.
            collect_samples: whether the result becomes a sample.
            last_step: cut the episode here (`truncated=True`) if it does not terminate by itself.

        Returns:
            As `gymnasium.Env.step`.
        """
        return self._in_control_thread(partial(self._loop.step, obs, test, collect_samples, last_step))

    # -- weights and samples, by hand ----------------------------------------------------------------

    def send_and_clear_buffer(self) -> None:
        """Let the samples collected so far leave now; does not wait."""
        self._outbox.seal()
        if self._session is not None:
            self._session.wake()

    def update_actor_weights(self, verbose: bool = True, blocking: bool = False) -> int:
        """Act with the newest weights from now on (`run` does so by itself).

        Args:
            verbose: log it.
            blocking: wait for new weights if there are none.

        Returns:
            1 if there were new weights, else 0.
        """
        while blocking and not self._intake.wait_for_new(0.2) and not self._env.stopping.is_set():
            self._check()
        changed = self._loop.refresh_policy()
        if changed and verbose:
            log.info("acting with policy %d", self.policy_version)
        return int(changed)

    def ignore_actor_weights(self) -> int:
        """Drop weights that arrived and were not used; returns how many policies that were (0 or 1)."""
        return int(self._intake.drop())

    # -- life ----------------------------------------------------------------------------------------

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait until the server let this worker in; raises what it refused it for."""
        if self._session is None:
            raise TransportError("a standalone worker has no connection")
        return self._session.wait_connected(timeout_s)

    def stop(self) -> None:
        """End the current (or next) run after its current step. Any thread, or a signal handler."""
        self._env.stopping.set()

    def close(self) -> None:
        """Send what is left, leave the server, close the environment. Twice is fine."""
        self._closed = True
        self.stop()
        self._loop.ended = self._loop.ended or "it was closed"
        if threading.current_thread() is not self._runner:
            self._idle.wait(1.5)
        self._outbox.seal()
        if self._session is not None:
            self._session.close()
        self._outbox.close()
        self._env.close()

    def __enter__(self) -> RolloutWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        if self._session is not None:
            self._session.check()


def _report(stats: EpisodeStats) -> None:
    log.info(
        "%s episode: return %.2f in %d steps%s (policy %d)",
        "test" if stats.test else "training",
        stats.return_,
        stats.steps,
        ", terminated" if stats.terminated else ", fault" if stats.fault else "",
        stats.policy_version,
    )


def _check_arguments(min_samples: int, max_samples: float, model_history: int, max_policy_age_s: float) -> None:
    if min_samples < 1:
        raise ConfigError(f"min_samples_per_worker_packet is {min_samples}; it must be 1 or more")
    if max_samples < 1:
        raise ConfigError(f"max_samples_per_episode is {max_samples}; it must be 1 or more")
    if model_history < 0:
        raise ConfigError(f"model_history is {model_history}; it must be 0 (keep none) or more")
    if not max_policy_age_s > 0:
        raise ConfigError(f"max_policy_age_s is {max_policy_age_s}; it must be above 0")


def _count_to(number: float) -> Iterable[int]:
    return itertools.count() if number == math.inf else range(int(number))
