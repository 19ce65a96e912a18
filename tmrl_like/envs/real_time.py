"""Environments that run an rtgym interface with rtgym's semantics, but on their own clock and
without rtgym's threads.
"""

from __future__ import annotations

import inspect
import math
import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import gymnasium
from gymnasium import spaces
from msgspec import Meta

from tmrl_like.base.factories import said_by_rtgym, said_to_memory, signature_of
from tmrl_like.base.options import Positive, in_range, refuse_unknown
from tmrl_like.envs.action_table import ActionTable
from tmrl_like.envs.actions import typed_action
from tmrl_like.envs.clock import MAX_SPIN_SHARE, SPIN_S, Clock
from tmrl_like.envs.float32 import Float32Env, closed_by_errors
from tmrl_like.errors import expect, unexpected

_Init = TypeVar("_Init", bound=Callable[..., None])

_Number = Annotated[float, Meta(ge=0, le=1e6)]
_SENDS_WITHIN_S = 0.01  # a `stop` waits no longer than this for a `send_control`


def also_takes(interface_cls: type) -> Callable[[_Init], _Init]:
    """Decorate a constructor that passes `**arguments` on to `interface_cls`, so that its signature
    lists them.

    Experiments are checked against signatures, and documentation pages are generated from them.
    """

    def decorate(init: _Init) -> _Init:
        own = [
            p for p in inspect.signature(init).parameters.values() if p.kind is not p.VAR_KEYWORD
        ]
        theirs = [
            p.replace(kind=p.KEYWORD_ONLY) for p in signature_of(interface_cls).parameters.values()
        ]
        init.__signature__ = inspect.Signature([*own, *theirs])  # type: ignore[attr-defined]
        return init

    return decorate


class ClockedGym(gymnasium.Env[Any, Any]):
    """An environment that drives an interface as rtgym's `RealTimeEnvTS` does, but in the calling
    thread and with absolute deadlines.

    In each time-step the action is sent, the observation is captured `start_obs_capture` seconds
    after the time-step began, and the time-step ends `time_step_duration` seconds after it began.
    `step(action)` waits for that end, sends `action`, which begins the next time-step, and returns
    the observation that was captured. A time-step begins when the previous one was due to end, even
    if `step` is called later. Once `step` is `time_step_timeout_factor` time-steps late, the
    time-step begins at that moment instead, with the warning "Time-step timed out".

    Spaces, observations, rewards, `info` and warnings are the same as rtgym's. So are the calls to
    the interface: their arguments, order and times. The differences follow from using one thread:

    - An observation that falls due while the policy computes is captured when the policy is done.
      With the default, an observation at the end of the time-step, this makes no difference.
    - A reset that begins more than a time-step after the last time-step was due to end does not
      capture that one's observation.
    - The policy waits while the interface sends an action, so `send_control` should hand the action
      over and return.
    - `stop` stops whatever moves (see `envs.brake.Brake`); rtgym's waits for its thread.
    - An exception in the interface propagates to the caller, and ends the episode.

    Attributes:
        interface: the instance of the dictionary's `interface`, made with its arguments.
        act_buf: the newest `act_buf_len` actions.
        default_action: the action of a reset; it also fills the buffer before the first one.
        current_step: number of steps since the reset.
        running: whether an episode is under way.
        is_stopped: whether `stop` was called, and no `release_stop` since; a reset ends it as well
            where `release_stop` is never called.
        bench: rtgym's benchmark; exists only if `benchmark` is on.
        table: the inputs that integers choose from, or None if actions are the interface's own.
    """

    # the keys of rtgym's dictionary and their defaults
    interface: Any
    interface_args: Sequence[Any] = ()
    interface_kwargs: Mapping[str, Any] = MappingProxyType({})
    time_step_duration: _Number = 0.0
    start_obs_capture: _Number = 1.0
    time_step_timeout_factor: _Number = 1.0
    ep_max_length: Annotated[float, Meta(ge=1)] = math.inf
    act_in_obs: bool = True
    act_buf_len: Positive = 1
    reset_act_buf: bool = True
    last_act_on_reset: bool = False
    wait_on_done: bool = False
    act_prepro_func: Callable[[Any], Any] | None = None
    obs_prepro_func: Callable[[Any], Any] | None = None
    benchmark: bool = False
    benchmark_polyak: float = 0.1
    benchmark_type: str = "polyak"
    spin_s: _Number = SPIN_S
    inputs: Sequence[Any] | None = None

    @staticmethod
    def memory_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a memory must know; see `RealTimeEnv.memory_arguments`."""
        return said_by_rtgym(arguments["config"])

    def __init__(
        self, config: dict[str, Any], clock: Clock | None = None, *, waits_when_cut: bool = False
    ) -> None:
        """Make the interface.

        Args:
            config: rtgym's dictionary (`rtgym.DEFAULT_CONFIG_DICT`), whose keys become attributes.
                It may have two further keys: `spin_s`, the most seconds before a deadline for which
                to poll the clock instead of sleeping (0.0002; at most a quarter of a time-step);
                and `inputs`, the rows of an `ActionTable` (None).
            clock: keeps the time; None for a new `Clock`.
            waits_when_cut: a reset during an episode calls the interface's `wait`.

        Raises:
            ConfigError: there is no interface, a number makes no sense, or the table does not fit.
        """
        config = self._checked(config)
        vars(self).update(config)
        self.interface = config["interface"](*self.interface_args, **self.interface_kwargs)
        with closed_by_errors(self):
            default_action = self.interface.get_default_action()
            self.action_space = self.interface.get_action_space()
            self.table: ActionTable | None = None
            if self.inputs is not None:
                self.table = ActionTable(self.inputs, self.action_space)
                self.action_space, default_action = (
                    self.table.space,
                    self.table.index_of(default_action),
                )
            self.default_action = typed_action(default_action, self.action_space)
            observation_space = self.interface.get_observation_space()
            fits = isinstance(observation_space, spaces.Tuple) or not self.act_in_obs
            expect(fits, "the interface's observation space", observation_space, "a Tuple")
        self.act_buf = deque([self.default_action] * self.act_buf_len, maxlen=self.act_buf_len)
        actions = (self.action_space,) * self.act_buf_len
        self.observation_space = (
            spaces.Tuple((*observation_space, *actions)) if self.act_in_obs else observation_space
        )
        if self.benchmark:
            from rtgym.envs.utils.benchmark import Benchmark, TraceBenchmark

            kind = Benchmark if self.benchmark_type.lower() == "polyak" else TraceBenchmark
            self.bench = kind(run_avg_factor=self.benchmark_polyak)
        self._waits_when_cut = waits_when_cut
        self.current_step = 0
        self.running = self.is_waiting = self.is_stopped = False
        self._is_braked = self._is_sending_late = False
        self._sending = threading.Lock()  # so that no command is sent after a `stop`
        self._clock = clock or Clock(self.spin_s)
        self._clock.max_spin_s = min(self.spin_s, MAX_SPIN_SHARE * self.time_step_duration)
        self._in_time_step = False
        self._captured: Any = None  # the time-step's observation; None before it is captured
        self._capture_at = 0.0
        self._end_at = math.nan  # end of the newest time-step; NaN before the first

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """End the current time-step, reset the interface, and begin a time-step with the default
        action.

        With `last_act_on_reset` and without `reset_act_buf`, it begins with the last action of the
        previous episode.
        """
        self._note("start_reset_time")
        super().reset(seed=seed)
        is_cut, self.running = self.running, False
        if not self._is_braked:
            self.is_stopped = False
        if is_cut and self._waits_when_cut:
            self.wait()
        self._end_time_step(is_needed=False)
        if self.is_stopped:
            raise RuntimeError("stopped before the interface was reset")
        self._note("end_reset_join_time")
        self.current_step = 0
        if self.reset_act_buf:
            self.act_buf.extend([self.default_action] * self.act_buf_len)
        elif not self.last_act_on_reset:
            self.act_buf[-1] = self.default_action
        returned = self.interface.reset(seed=seed, options=options)
        try:
            obs, info = returned
            obs = self._with_actions(obs)
        except (TypeError, ValueError):
            expected = "(list of observations, info)"
            raise unexpected("the interface's reset()", returned, expected) from None
        if self.obs_prepro_func:
            obs = self.obs_prepro_func(obs)
        if math.isnan(self._end_at):
            self._end_at = self._clock.now()
        self._begin_time_step(self.act_buf[-1])
        self._note("end_reset_time")
        return tuple(obs), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Wait until the current time-step ends, then begin the next one with `action`; see the
        class.

        At the end of an episode no time-step begins; with `wait_on_done`, the interface's `wait` is
        called.

        Raises:
            RuntimeError: no episode is under way.
        """
        self._note("start_step_time")
        was_running, self.running = self.running, False  # stays False if the interface raises
        self._end_time_step()
        self._note("end_step_join_time")
        self.current_step += 1
        self.act_buf.append(copy(action))
        if not was_running:
            raise RuntimeError("The episode is terminated or truncated. Call reset before step.")
        obs, rew, terminated, info = self._captured
        truncated = self.current_step >= self.ep_max_length if not terminated else False
        if not (terminated or truncated):
            self._begin_time_step(action)
        elif self.wait_on_done:
            self.wait()
        self._note("end_step_time")
        return tuple(self._with_actions(obs)), rew, terminated, truncated, info

    def _with_actions(self, obs: Sequence[Any]) -> Sequence[Any]:
        return [*obs, *map(copy, self.act_buf)] if self.act_in_obs else obs

    def wait(self) -> None:
        """Pause: end the current time-step, call the interface's `wait`, and allow the next
        time-step to begin at any later time without a warning.
        """
        self._end_time_step(is_needed=self.running)
        self.is_waiting = True
        self.interface.wait()

    def while_waiting(self, call: Callable[[], None]) -> None:
        """Run `call` in each wait for a deadline that leaves enough time for it; see `Clock`."""
        self._clock.while_waiting(call)

    @property
    def stop(self) -> Callable[[], None] | None:
        """A function that calls the interface's `stop` and lets no time-step begin before the next
        reset; None if the interface has no `stop`.
        """
        return self._stop if callable(getattr(self.interface, "stop", None)) else None

    def release_stop(self) -> None:
        """Let time-steps begin again after a `stop`. Once this was called, a reset alone does not:
        the stop may have come while a wrapper prepared that reset.
        """
        self._is_braked, self.is_stopped = True, False

    def _stop(self) -> None:
        self.is_stopped = self.is_waiting = True
        is_free = self._sending.acquire(timeout=_SENDS_WITHIN_S)
        self._is_sending_late = not is_free
        try:
            self.interface.stop()
        finally:
            if is_free:
                self._sending.release()

    def close(self) -> None:
        """Close the interface, if it has a `close`."""
        if hasattr(self.interface, "close"):
            self.interface.close()

    def _checked(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the dictionary, with whole numbers as ints. Raise ConfigError if there is no
        interface, for a key that rtgym does not have, or for a number with which it fails or never
        returns.
        """
        refuse_unknown("rtgym's config", config, ClockedGym)
        value = config.get("interface")
        expected = "the interface's class (in a file {class_path: …})"
        expect(callable(value), "interface", value, expected)
        hints = inspect.get_annotations(ClockedGym, eval_str=True)
        hints |= inspect.get_annotations(type(self), eval_str=True)
        checked = {name: in_range(name, config[name], hints[name]) for name in config}
        duration = config.get("time_step_duration", 0)
        capture = config.get("start_obs_capture", 1.0)
        is_within = not duration or capture <= 1.001 * duration  # 3 * 0.1 is more than 0.3
        expect(is_within, "start_obs_capture", capture, f"time_step_duration, {duration}, or less")
        return checked

    def _begin_time_step(self, action: Any) -> None:
        self._note("start_send_control_time")
        control = action if self.table is None else self.table(action)
        control = self.act_prepro_func(control) if self.act_prepro_func else control
        with self._sending:
            if self.is_stopped:
                return
            try:
                self.interface.send_control(control)
            finally:
                if self._is_sending_late:  # the robot may have got it after the stop
                    self._is_sending_late = False
                    self.interface.stop()
        self._note("end_send_control_time")
        now = self._clock.now()
        begins_at = self._end_at
        if now >= begins_at + self.time_step_duration * self.time_step_timeout_factor:
            if not self.is_waiting:
                warnings.warn(
                    f"Time-step timed out. Elapsed since last time-step: {now - begins_at}",
                    stacklevel=2,
                )
            self.is_waiting = False
            begins_at = now
        self._capture_at = begins_at + self.start_obs_capture
        self._end_at = begins_at + self.time_step_duration
        self._in_time_step, self._captured = True, None
        if now >= self._capture_at:
            self._capture()
        self.running = True

    def _end_time_step(self, is_needed: bool = True) -> None:
        """Wait for the end of the current time-step, and capture its observation.

        An observation that is not needed is left out if the time-step was due to end more than a
        time-step ago, as after a person's pause.
        """
        if not self._in_time_step:
            return
        self._in_time_step = False
        if not is_needed and self._clock.now() > self._end_at + self.time_step_duration:
            return
        if self._captured is None:
            self._clock.wait_until(self._capture_at)
            self._capture()
        self._clock.wait_until(self._end_at)

    def _capture(self) -> None:
        self._note("start_get_obs_time")
        returned = self.interface.get_obs_rew_terminated_info()
        try:
            obs, rew, terminated, info = returned
        except (TypeError, ValueError):
            name, expected = "get_obs_rew_terminated_info()", "(list, reward, terminated, info)"
            raise unexpected(f"the interface's {name}", returned, expected) from None
        obs = tuple(self.obs_prepro_func(obs) if self.obs_prepro_func else obs)
        self._captured = obs, rew, terminated, info
        self._note("end_get_obs_time")

    def _note(self, event: str) -> None:
        """Record an event with rtgym's benchmark, if it is on."""
        if self.benchmark:
            getattr(self.bench, event)()

    def benchmarks(self) -> dict[str, Any]:
        """Return what rtgym's benchmark measured: for each duration (average, average deviation) in
        seconds, or its trace.
        """
        assert self.benchmark, (
            "The benchmark option is not set. Set benchmark=True in the configuration dictionary"
        )
        benchmarks: dict[str, Any] = self.bench.get_benchmark_dict()
        return benchmarks

    def render(self) -> Any:
        """Return what the interface renders."""
        return self.interface.render()


class RealTimeEnv(Float32Env):
    """An environment that runs an rtgym interface in real time (`ClockedGym`), with the last
    `act_buf_len` actions in its observation.

    A step that takes more than two time-steps is an overrun. By default, each reset also resets the
    action buffer.
    """

    @staticmethod
    def memory_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a memory must know about an environment with these arguments, by the names of
        the memory's arguments.

        A subclass overrides this if its constructor has other arguments, or if its observations
        hold stacks of frames.
        """
        return said_to_memory(arguments)

    def __init__(
        self,
        interface: Callable[[], Any],
        time_step_duration: float = 0.05,
        ep_max_length: int = 1000,
        act_buf_len: int = 2,
        start_obs_capture: float | None = None,
        wait_on_done: bool = True,
        reset_act_buf: bool = True,
        inputs: Sequence[Any] | None = None,
    ) -> None:
        """Make the interface, and the environment around it.

        Args:
            interface: makes the interface when called without arguments: its class, or a `partial`
                of it.
            time_step_duration: seconds between two decisions.
            ep_max_length: steps after which an episode is truncated.
            act_buf_len: past actions in the observation; they should cover the delay.
            start_obs_capture: seconds into a time-step at which the observation is captured; None
                for its end.
            wait_on_done: call the interface's `wait` at the end of an episode, and stop the clock
                until the reset.
            reset_act_buf: fill the action buffer with default actions at each reset.
            inputs: rows of an `ActionTable`, the interface's default action among them; actions are
                then row numbers. With None, actions are the interface's own.

        Raises:
            ConfigError: a number makes no sense, or the table does not fit.
        """
        config = {
            "interface": interface,
            "time_step_duration": time_step_duration,
            "start_obs_capture": time_step_duration
            if start_obs_capture is None
            else start_obs_capture,
            "ep_max_length": ep_max_length,
            "act_buf_len": act_buf_len,
            "wait_on_done": wait_on_done,
            "reset_act_buf": reset_act_buf,
            "inputs": inputs,
        }
        # an episode that a wrapper or a worker cuts ends as any other, and its reset is no overrun
        super().__init__(ClockedGym(config, waits_when_cut=wait_on_done))
