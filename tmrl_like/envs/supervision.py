"""Keeps a user's environment running: errors and hangs become one exception, and a broken
environment is rebuilt.

The environment lives in a thread of its own, the control thread: it is made there, and everything
that uses it runs there while the caller waits. So the caller can leave behind a call that does not
return, together with its thread, and continue with a new thread and a new environment.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

import gymnasium

from tmrl_like.base.functional import place_of
from tmrl_like.base.processes import ProcessGuard
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import is_shortage
from tmrl_like.envs.actions import default_action
from tmrl_like.envs.attributes import attribute_of, time_step_of, values_of
from tmrl_like.envs.brake import Brake
from tmrl_like.envs.control_thread import ControlThread
from tmrl_like.envs.deferred_log import DeferredLog
from tmrl_like.envs.float32 import closed_by_errors, no_reset, no_step
from tmrl_like.envs.game_processes import EnvProcesses
from tmrl_like.envs.sensor import Sensor, sensors_of
from tmrl_like.errors import (
    ConfigError,
    EnvironmentAwayError,
    EnvironmentFaultError,
    MissingExtraError,
    ShortageError,
    expect,
)

log = logging.getLogger("tmrl_like.envs")

_T = TypeVar("_T")

_LOOK_S = 0.25
_LOOK_TO_STOP_S = 0.03  # if something would go on moving during a hang
STOP_WITHIN_S = 1.0
CLOSE_WITHIN_S = 5.0
_CLOSE_LOST_WITHIN_S = 1.0
MAX_FAULTS_IN_A_ROW = 5
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 10.0


class StoppedError(Exception):
    """Raised after `stopping` was set; unwinds to the code that runs episodes."""


class _Stopping(threading.Event):
    """A request to stop, which pulls the brake at once."""

    brake: Brake | None = None

    def set(self) -> None:
        super().set()
        if self.brake is not None:
            self.brake.pull_soon()


class _LeftBehindError(BaseException):
    """Raised in a thread that was left behind, to unwind it without touching anything."""


class SupervisedEnv:
    """An environment that can be left behind when it hangs, and made again.

    Attributes:
        env: the current environment; another one after `rebuild`.
        time_step_s: nominal duration of a time-step; 0 if the environment does not run in real
            time.
        brake: stops what the environment moves whenever nobody drives it.
        overrun_after_s: a step that takes this long missed its deadline; infinite if there is no
            deadline.
        stopping: set it to end what `run` runs: what moves is stopped at once, and a call that
            hangs is left behind after a second.
        faults: number of faults since construction: broken-off episodes and failed rebuilds.
        rebuilds: number of rebuilds since construction.
        log: for log lines of the control thread; the thread that waits in `run` writes them, four
            times a second.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        hang_timeout_s: float = 30.0,
        seed: int | None = None,
    ) -> None:
        """Make the environment, however long that takes.

        Args:
            make_env: makes the environment, now and after each fault.
            hang_timeout_s: a call that takes longer than this many seconds is a fault.
            seed: seed of the first reset of each environment that is made: this number at first,
                the next one after each rebuild. None to pass no seed.
        """
        self.stopping = _Stopping()
        self.log = DeferredLog(log)
        # rtgym's warning of what a worker reports as an overrun: it would wait for the terminal
        warnings.filterwarnings("ignore", "Time-step timed out")
        self._make_env = make_env
        self._hang_timeout_s = hang_timeout_s
        self._seed = seed
        self._thread = ControlThread()
        self._has_left = False  # whether a thread was ever left behind
        self._call_while_waiting: Callable[[], None] | None = None
        # start of the current call and, until some thread takes it, the call's name
        self._call_token: list[Any] = [0.0]
        self.faults = self.rebuilds = 0
        self._faults_in_a_row = self._rebuilds_in_a_row = 0
        self._closed = False
        self._is_open = False  # `env` was made and not closed
        self._is_lost = False  # `env` was left behind in a call
        self._guard = ProcessGuard()
        self._processes: EnvProcesses | None = None
        self.brake = Brake(None, self._guard, self.stopping)
        started = time.monotonic()
        with closed_by_errors(self):
            self._make(math.inf)
        self._make_within_s = max(hang_timeout_s, 3 * (time.monotonic() - started))

    def _adopt(self, env: Any) -> None:
        self.env = env
        self._is_new = True  # it has not been reset yet
        self._is_open, self._is_lost = True, False
        for name in ("observation_space", "action_space"):
            space = getattr(env, name, None)
            expected = "one of gymnasium.spaces"
            expect(isinstance(space, gymnasium.Space), f"the environment's {name}", space, expected)
        self.time_step_s = time_step_of(env)
        factor = attribute_of(env, "time_step_timeout_factor")
        overrun_after_s = self.time_step_s * (1.0 + (1.0 if factor is None else float(factor)))
        self.brake = self.stopping.brake = Brake(env, self._guard, self.stopping)
        space, action = env.action_space, self.default_action
        expect(space.contains(action), "the default action", action, f"an action of {space}")
        # 1 % less, for the clock's own noise
        self.overrun_after_s = 0.99 * overrun_after_s if overrun_after_s else math.inf
        if self._call_while_waiting is not None:
            self.while_waiting(self._call_while_waiting)

    def while_waiting(self, call: Callable[[], None]) -> None:
        """Run `call` whenever the environment waits for its clock and has time for it.

        It is passed to the environment's own method `while_waiting`, now and after each rebuild.
        Most environments have none; see `ClockedGym`.
        """
        self._call_while_waiting = call
        while_waiting = attribute_of(self.env, "while_waiting")
        if while_waiting is not None:
            while_waiting(call)

    @property
    def sensors(self) -> Sequence[Sensor[Any]]:
        """The environment's sensors, which a reset may make; see `Sensor`."""
        return sensors_of(self.env)

    @property
    def default_action(self) -> Any:
        """The action of a reset: the environment's own, or a neutral one of its space."""
        return default_action(self.env)

    @property
    def moves_hardware(self) -> bool:
        """Whether the environment or its interface has a true attribute `moves_hardware`."""
        return any(values_of(self.env, "moves_hardware"))

    @property
    def thread_id(self) -> int:
        """Native id of the control thread, which changes after a hang."""
        return self._thread.native_id or 0

    # -- in the control thread ---------------------------------------------------------------------

    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Reset the environment.

        Raises:
            EnvironmentFaultError: the environment raised.
            ConfigError, MissingExtraError: the environment raised one of these, which a rebuild
                would not fix, or returned something else than Gymnasium's environments do.
            StoppedError: `stopping` was set, and there is something that would move.
        """
        options = {}
        if self._is_new and self._seed is not None and _takes_seed(self.env.reset):
            options["seed"] = self._seed + self.rebuilds
        self._is_new = False
        if not self.brake.release():
            raise StoppedError
        result = self._call("reset()", self.env.reset, **options)
        try:
            obs, info = result
        except (TypeError, ValueError):
            info = None
        if not isinstance(info, dict):
            raise no_reset(result)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment. Raises as `reset`, and StoppedError if what moves was stopped since
        the reset.
        """
        if self.brake.is_on:
            raise StoppedError
        result = self._call("step()", self.env.step, action)
        try:
            obs, rew, terminated, truncated, info = result
            if isinstance(info, dict):
                return obs, rew, bool(terminated), bool(truncated), info
        except (TypeError, ValueError):
            pass
        raise no_step(result)

    def _call(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._has_left and getattr(threading.current_thread(), "is_left", False):
            raise _LeftBehindError
        token = self._call_token = [time.monotonic(), name]
        try:
            return call(*args, **options)
        except (Exception, SystemExit) as error:
            # it raised because it was stopped during the call
            if self.brake.is_on and self.stopping.is_set():
                raise StoppedError from error
            if isinstance(error, EnvironmentFaultError | ConfigError | MissingExtraError):
                raise
            line = f"the environment raised in {name}: {one_line(error)}{place_of(error)}"
            if is_shortage(error):
                raise EnvironmentAwayError(line) from None
            raise EnvironmentFaultError(line) from error
        finally:
            try:
                token.pop(1)  # `_take` inlined
            except IndexError:
                raise _LeftBehindError from None

    # -- in the caller's thread --------------------------------------------------------------------

    def run(self, call: Callable[[], _T], within_s: float | None = None) -> _T:
        """Make a call that uses the environment, in the control thread, and return its result.

        If the call raises, what moves is stopped. `within_s` takes the place of `hang_timeout_s`.

        Raises:
            EnvironmentFaultError: the environment did not return in time.
            StoppedError: `stopping` was set, and the call did not end.
        """
        if self._thread.is_current:
            return call()
        if self._closed:
            raise StoppedError
        thread = self._thread
        job = thread.submit(partial(self._with_brake, call))
        try:
            self._wait(job, thread, within_s or self._hang_timeout_s)
            result: _T = job.result()
            return result
        except _LeftBehindError:  # `close` left it behind, and it has come back at once
            raise StoppedError from None
        except (KeyboardInterrupt, SystemExit):
            if not job.done():
                self._stop(job, thread)
            raise
        finally:
            self.log.write()
            del job  # breaks a cycle: it holds its exception, whose frames hold it

    def _with_brake(self, call: Callable[[], _T]) -> _T:
        brake = self.brake  # of this call's environment; a rebuild makes another one
        try:
            return call()
        except BaseException:
            brake.pull()
            raise

    def _stop(self, job: Future[Any], thread: ControlThread) -> None:
        """End a job that the caller no longer wants, or leave it behind."""
        was_stopping = self.stopping.is_set()
        self.stopping.set()
        try:
            self._wait(job, thread, self._hang_timeout_s)
        except (StoppedError, EnvironmentFaultError):
            pass
        except BaseException:  # Ctrl-C again
            self._leave_thread()
            raise
        finally:
            if not was_stopping:
                self.stopping.clear()

    def _wait(self, job: Future[Any], thread: ControlThread, hang_timeout_s: float) -> None:
        stop_at, looked_at = math.inf, time.monotonic()
        look_s = _LOOK_TO_STOP_S if self.brake.exists else _LOOK_S
        while not wait([job], min(look_s, hang_timeout_s / 4)).done:
            if thread.is_left:
                raise StoppedError
            now, token = time.monotonic(), self._call_token
            if self.stopping.is_set():
                stop_at = min(stop_at, now + STOP_WITHIN_S)
            if now >= stop_at and (_take(token) is not None or now >= stop_at + STOP_WITHIN_S):
                self._leave_thread()
                raise StoppedError
            if now - looked_at > hang_timeout_s / 2:  # this whole process was suspended
                token[0] = now
            if now - token[0] >= hang_timeout_s and (name := _take(token)) is not None:
                self._leave_thread()
                raise EnvironmentFaultError(
                    f"the environment hangs: {name} has not come back for {hang_timeout_s:.3g} s"
                )
            looked_at = now
            self.log.write()
            if self._is_open and self._processes is not None:
                self._processes.look()

    def _leave_thread(self) -> None:
        """Stop what moves, leave the control thread behind, and continue with a new one."""
        self.brake.pull()
        _take(self._call_token)
        self._thread.leave()
        self._has_left = self._is_lost = True
        with contextlib.suppress(ShortageError):  # `_make` tries again
            self._thread = ControlThread()

    def episode_ended_well(self) -> None:
        """Reset the counts of faults and rebuilds in a row."""
        self._faults_in_a_row = self._rebuilds_in_a_row = 0

    def revive(self) -> None:
        """Make the environment again if it was left behind in an earlier call; raise
        EnvironmentFaultError if that fails.
        """
        if self._is_lost and not self._closed:
            self._dispose(CLOSE_WITHIN_S)
            self._make_again()

    def rebuild(self, error: EnvironmentFaultError) -> None:
        """End what is left of the environment and make a new one, after a pause that grows with
        each fault in a row.

        Raises:
            EnvironmentFaultError: there were too many faults in a row; an EnvironmentAwayError does
                not count as one.
            StoppedError: `stopping` was set; there is no new environment.
        """
        said = ""
        while True:
            self.faults += 1
            self._rebuilds_in_a_row += 1
            is_away = isinstance(error, EnvironmentAwayError)
            self._faults_in_a_row += not is_away
            is_known, said = is_away and str(error) == said, str(error)
            if not is_known:
                log.error(
                    "%s", error, exc_info=error.__cause__ if self._rebuilds_in_a_row == 1 else None
                )
            self._dispose(CLOSE_WITHIN_S)
            if self._faults_in_a_row >= MAX_FAULTS_IN_A_ROW:
                raise EnvironmentFaultError(
                    f"{error} ({self._faults_in_a_row} faults in a row; giving up)"
                ) from error
            backoff_s = min(
                MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(self._rebuilds_in_a_row - 1, 10)
            )
            if not is_known:
                log.warning("rebuilding the environment in %.1f s", backoff_s)
            if self.stopping.wait(backoff_s):
                raise StoppedError
            try:
                return self._make_again()
            except EnvironmentFaultError as again:
                error = again

    def _make_again(self) -> None:
        """Make the environment again.

        Raises:
            EnvironmentFaultError: it raised, or was not made in time.
            ConfigError, MissingExtraError: it raised one of these.
            StoppedError: `stopping` was set before it was made.
        """
        try:
            self._make(self._make_within_s)
        except ShortageError as error:
            raise EnvironmentAwayError(str(error)) from None
        self.rebuilds += 1

    def close(self) -> None:
        """Close the environment, and end the processes that it started; errors are logged. Calling
        it twice is fine.
        """
        if self._closed:
            return
        self._closed = True
        self.stopping.set()
        self._dispose(_CLOSE_LOST_WITHIN_S if self._is_lost else CLOSE_WITHIN_S)
        self._guard.close()
        _take(self._call_token)  # an environment that is still being made closes itself
        self._thread.leave()

    def _make(self, within_s: float) -> None:
        """Make the environment in the control thread; raises as `run`."""
        if self._closed:  # it needs no new thread, which nothing would end
            raise StoppedError
        if self._thread.is_left:
            self._thread = ControlThread()
        self.run(self._make_here, within_s)

    def _make_here(self) -> None:
        self._processes = processes = EnvProcesses(self._guard)
        made: list[Any] = []
        try:
            self._call("its constructor", lambda: made.append(self._make_env()))
        except _LeftBehindError:  # it is ready too late
            for env in made:
                env.close()
            raise
        processes.made()
        self._call("its attributes", partial(self._adopt, made[0]))

    def _dispose(self, within_s: float) -> None:
        """Close the environment if it is open, and end the processes that it started.

        After a hang, the processes are ended first: the environment may be waiting for one of them,
        and its `close` would wait as well, in the worst case with the interpreter's lock held.
        """
        if self._is_open:
            self.brake.close()
            if self._is_lost and self._processes is not None:
                self._processes.end()
            self._is_open, self._is_lost = False, True
            try:
                self._close_env(within_s)
            except Exception as error:
                log.warning("closing the environment failed: %s", one_line(error))
        if self._processes is not None:
            self._processes.end()

    def _close_env(self, within_s: float) -> None:
        if self._thread.is_current:
            self._close_here()
            return
        if self._thread.is_busy:
            self._leave_thread()
        if self._thread.is_left:
            raise TimeoutError("there is no thread for it")
        job = self._thread.submit(self._close_here)
        if not wait([job], within_s).done:
            self._leave_thread()
            raise TimeoutError(f"not done after {within_s:g} s")
        job.result()

    def _close_here(self) -> None:
        try:
            self.env.close()
        except SystemExit as error:
            raise RuntimeError(f"it exits ({error})") from None


def _takes_seed(reset: Callable[..., Any]) -> bool:
    parameters = inspect.signature(reset).parameters.values()
    return any(each.name == "seed" or each.kind is each.VAR_KEYWORD for each in parameters)


def _take(token: list[Any]) -> Any:
    """Take the call out of a token, which only one thread can do; return None if another did."""
    try:
        return token.pop(1)
    except IndexError:
        return None
