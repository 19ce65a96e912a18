"""The rollout worker: acts in the environment, in real time, and lets nothing else wait in that thread."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import tmrl_like.config.config_constants as cfg
from tmrl_like.base import script
from tmrl_like.base.options import with_given
from tmrl_like.base.text import one_line
from tmrl_like.config.paths import RunPath
from tmrl_like.delivery.folder import new_name
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.envs.actions import held_actions
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv
from tmrl_like.errors import ConfigError, EnvironmentFaultError, TransportError
from tmrl_like.policies.choice import faster
from tmrl_like.policies.intake import PolicyIntake, TorchIntake
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.transport.base import TransportOptions
from tmrl_like.types import EpisodeStats, ObsPreprocessor, SampleCompressor
from tmrl_like.wire.spaces import describe_spaces
from tmrl_like.worker.control_loop import ControlLoop
from tmrl_like.worker.dead_man import DeadMan, to_action
from tmrl_like.worker.link_client import LinkClient, LinkProcess, LinkThread, end_link_process, start_link_process
from tmrl_like.worker.link_messages import Start, State
from tmrl_like.worker.options import WorkerOptions
from tmrl_like.worker.realtime import real_time, refuse_missing_cores
from tmrl_like.worker.shared import Shared
from tmrl_like.worker.timing import StepTimes, measure, percentiles

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


def _orders(order: _Order, goes_on: Callable[[int], bool], test_episode_interval: int = 0) -> Iterator[_Order]:
    """The same order while `goes_on(episodes so far)`, and a test before every k-th of them; 0: none."""
    for episode in itertools.takewhile(goes_on, itertools.count()):
        if test_episode_interval and episode % test_episode_interval == 0:
            yield _Order(test=True, collect=False, verbose=True)
        yield order


class RolloutWorker:
    """Drives an environment with the newest policy and sends the samples to the server.

    The environment lives in a thread of its own, which acts, steps and appends while the caller of `run`
    waits. Encoding, sending, receiving and checking weights, and writing them to disk happen in a process of its own,
    the link, which this one starts, and starts again if it ends. An environment that raises or hangs is closed and
    made again.
    Construction connects and collects nothing. Use it as a context manager, or call `close`; one that is still open
    when the script ends is closed then.

    Attributes:
        loop: the control loop, with its counts (`env_steps`, `overruns`, …), the supervised environment (`env`) and
            what stands in for the policy (`dead_man`). To look at, from any thread.
        link: the worker's end of its link, with what is known of the connection (`status`); None: it has none.
        name: this worker's.
        standalone: whether it has no connection.
    """

    def __init__(
        self,
        env_cls: Callable[[], Any],
        actor_module_cls: Callable[..., Any],
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
        server_port: int | None = None,
        transport: str = "zmq",
        keys_dir: str | Path | None = None,
        name: str | None = None,
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
            server_ip: the server's address; None: `cfg.SERVER_IP_FOR_WORKER`, which is this machine unless set.
            min_samples_per_worker_packet: as `outbox.min_samples` in `options`: no packet leaves with fewer samples.
            max_samples_per_episode: likewise.
            model_path: weights are loaded from there now, if the file exists, and the newest are kept there; left out:
                the run's file (`cfg.MODEL_PATH_WORKER`); None: neither.
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
            options: how it runs; None: the defaults, and `cfg.MODEL_HISTORY`.
            limits: of the transport.

        Raises:
            CredentialsError: this machine's key cannot be read.
            PolicyError: the weights at `model_path` do not fit the actor, or are not fit to act.
            EnvironmentFaultError, ConfigError: the environment cannot be made.
            ConfigError: an argument is out of range, or the spool cannot be used.
            MemoryContractError: the compressor does not take the six items of a sample.
        """
        options = with_given(
            WorkerOptions,
            WorkerOptions(model_history=cfg.MODEL_HISTORY) if options is None else options,
            device=device,
            max_samples_per_episode=max_samples_per_episode,
            model_history=model_history,
        )
        weights = cfg.path_of_run(model_path, "MODEL_PATH_WORKER")
        history = cfg.path_of_run(model_path_history, "MODEL_PATH_SAVE_HISTORY")
        refuse_missing_cores(options.cpu_affinity)
        self._real_time = partial(real_time, priority=options.realtime_priority, cpu_affinity=options.cpu_affinity)
        in_process = options.link_process and transport != "inproc"
        process = start_link_process() if in_process and not standalone else None  # it starts while the rest is made
        with contextlib.ExitStack() as undo:  # what a failure below must not leave behind
            if process is not None:
                undo.callback(end_link_process, process)
            self._env = SupervisedEnv(env_cls, options.hang_timeout_s, options.own_thread)
            undo.callback(self._env.close)
            safe = None if options.safe_action is None else to_action(options.safe_action, self.env.action_space)
            dead_man = DeadMan(
                math.inf if standalone else options.max_policy_age_s,
                lambda: self._env.default_action if safe is None else safe,
                self._env.log.add,
            )

            def make_actor() -> Any:
                spaces = {"observation_space": self.env.observation_space, "action_space": self.env.action_space}
                return actor_module_cls(**spaces).to_device(options.device)

            _refuse_longer_buffer(sample_compressor, self.env)
            probe = PolicyProbe(self.env.observation_space, self.env.action_space, obs_preprocessor)
            actor = make_actor()
            if probe.sampled:
                actor = faster(actor, probe.sampled[0])
            outbox = with_given(OutboxOptions, options.outbox, min_samples=min_samples_per_worker_packet)
            self.standalone = standalone
            self.link: LinkClient | None = None
            self.name = name or new_name()
            self._where = ""
            self._shared: Shared | None = None
            self._intake: PolicyIntake = TorchIntake(None, probe, make_actor)
            if not standalone:
                spool = cfg.RUN_FOLDER / "spool" if options.spool is True else options.spool
                place = Path(spool) if spool else None
                self._shared = Shared(place, name, actor, make_actor, probe, crc_debug, outbox.max_bytes)
                undo.callback(self._shared.close)
                self._intake, self.name = self._shared.intake, self._shared.worker
            if weights is not None and weights.is_file():
                self._intake.load_file(actor, weights)
                dead_man.renew(time.perf_counter())
                log.info("loaded weights from %s", weights)
            self.loop = ControlLoop(
                self._env,
                actor,
                self._intake,
                self.name,
                dead_man,
                sample_compressor,
                obs_preprocessor,
                options.max_samples_per_episode,
                crc_debug,
                self._check,
            )
            self._waits_for_policy = options.wait_for_policy and not standalone
            self._has_warned = False
            self._closed = False
            self._idle = threading.Event()  # no run is under way
            self._idle.set()
            self._runner: threading.Thread | None = None
            if self._shared is not None:
                self.loop.samples = self._shared.samples
                host, port = server_ip or cfg.SERVER_IP_FOR_WORKER, cfg.PORT if server_port is None else server_port
                self._where = f"{host}:{port}"
                parts = self._state, self._intake, self._shared.samples.refill
                link = LinkThread(*parts) if process is None else LinkProcess(*parts, process)
                link.begin(
                    Start(
                        **self._shared.for_link,
                        outbox=outbox,
                        transport=transport,
                        host=host,
                        port=port,
                        keys=str(keys_dir or cfg.KEYS_FOLDER),
                        limits=limits or TransportOptions(),
                        spaces=describe_spaces(self.env.observation_space, self.env.action_space),
                        weights=str(weights or ""),
                        history=str(history or ""),
                        model_history=options.model_history,
                        log_level=log.getEffectiveLevel(),
                        state=self._state(),
                    )
                )
                self.link = link
            undo.pop_all()
        script.close_at_exit(self, turn=0)

    def _state(self) -> State:
        loop = self.loop
        alarms = self._intake.verdicts.alarm, loop.dead_man.alarm, self._shared.samples.alarm if self._shared else ""
        return State(
            policy_version=loop.policy_version,
            policy_published_at_s=loop.policy_published_at_s,
            env_steps=loop.env_steps,
            overruns=loop.overruns,
            expert=loop.expert,
            alarm="; ".join(filter(None, alarms)),
            safe_steps=loop.dead_man.safe_steps,
            env_faults=loop.env.faults,
            env_rebuilds=loop.env.rebuilds,
            ended=loop.ended,
        )

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
        self.loop.expert = expert
        if self.link is not None:
            self.link.tell(self._state())
        order = _Order(test=False, collect=True, verbose=verbose)
        orders = _orders(order, lambda episode: episode < nb_episodes, 0 if expert else test_episode_interval)
        self._drive_until_stopped(orders)

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
        self._drive_until_stopped(_orders(order, lambda episode: episode < nb_episodes), all_stats.append)
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
        if self._env.time_step_s:
            raise ConfigError(
                f"the environment runs in real time (time-step of {self._env.time_step_s * 1e3:g} ms), and synchronous "
                "collection would let it run on without an action while it waits for the trainer: use `run` "
                "(in an experiment: worker.synchronous: false)"
            )
        start = self.loop.collected_steps
        received = self._intake.received

        def ahead() -> bool:
            steps = self.loop.collected_steps - start
            updates = self._intake.received - received
            return steps >= initial_steps and steps - initial_steps > max_steps_per_update * updates

        def wait_for_trainer() -> None:
            self.send_and_clear_buffer()
            while ahead():
                self._check()
                self._intake.wait_for_new(0.2)
                if self._env.stopping.is_set():
                    raise StoppedError
            self.loop.refresh_policy()

        def goes_on(episode: int) -> bool:
            if episode:
                wait_for_trainer()
            return self.loop.collected_steps - start < nb_steps + initial_steps

        after_step = None if end_episodes else wait_for_trainer
        order = _Order(test=False, collect=True, verbose=verbose, after_step=after_step)
        self._drive_until_stopped(_orders(order, goes_on, test_episode_interval))

    def _drive_until_stopped(
        self, orders: Iterator[_Order], on_episode: Callable[[EpisodeStats], None] | None = None
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
        """Run episodes, whatever the environment does; `tuned`: with what a long run asks of system and Python."""
        order = _Order(test=False, collect=False)

        def end(stats: EpisodeStats) -> None:
            if order.verbose:
                kind = "test" if stats.test else "training"
                how = ", terminated" if stats.terminated else ", fault" if stats.fault else ""
                line = "%s episode: return %.2f in %d steps%s (policy %d)"
                self._env.log.add(logging.INFO, line, kind, stats.return_, stats.steps, how, stats.policy_version)
            if on_episode is not None:
                on_episode(stats)

        def run_episodes() -> None:
            nonlocal order
            for order in orders:
                end(self.loop.run_episode(order.max_samples, order.test, order.collect, order.after_step))
                if self._env.stopping.is_set():
                    raise StoppedError

        self._runner = threading.current_thread()
        self._idle.clear()
        self._note_end(None)
        try:
            self._await_policy()
            self._env.revive()
            while True:
                try:
                    helpers = [threading.get_native_id(), *([self.link.thread_id] if self.link else [])]
                    with self._real_time(self._env.thread_id, helpers) if tuned else contextlib.nullcontext():
                        return self._env.run(run_episodes)
                except EnvironmentFaultError as error:
                    end(self.loop.end_in_fault(str(error)))
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
        times = StepTimes(nb_steps, overrun_after_s=self._env.overrun_after_s)
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

    def measure(self, times: StepTimes, floor: StepTimes | None = None, test: bool = False) -> None:
        """Measure steps with the actor in the loop, and the machine's own floor in turns; `stop` ends it.

        Args:
            times: takes as many steps as it has room for; no samples are collected.
            floor: takes as many of a bare loop that sleeps and spins; None: the control loop alone.
            test: whether the actor acts as in a test.
        """
        self._await_policy()
        with self._real_time(self._env.thread_id, [threading.get_native_id()]):
            self.run_in_control_thread(lambda _: measure(self.loop, times, floor, test))

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
        """Act on `obs` and do one environment step; returns what `gymnasium.Env.step` does.

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
        if self.loop.samples is not None:
            self.loop.samples.seal()

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
        changed = self.loop.refresh_policy()
        if changed and verbose:
            log.info("acting with policy %d", self.policy_version)
        return int(changed)

    def ignore_actor_weights(self) -> int:
        """Drop weights that arrived and were not used; returns how many policies that were (0 or 1)."""
        return int(self._intake.drop())

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
        self._env.stopping.set()

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
        self._env.close()
        if self._shared is not None:
            self._shared.close()

    def __enter__(self) -> RolloutWorker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if self.link is not None:
            self.link.check()


def _refuse_longer_buffer(compressor: SampleCompressor | None, env: Any) -> None:
    dropped, held = getattr(compressor, "act_buf_len", 0), held_actions(env)
    if held is not None and dropped > held:
        raise ConfigError(
            f"the compressor drops {dropped} actions of each observation, which ends in {held}: give the memory the "
            "environment's act_buf_len, or none"
        )
