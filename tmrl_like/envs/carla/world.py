"""The connection to a CARLA simulator: its clock, and the actors that are made in it.

Every change is undone at the end: actors are destroyed, and the simulator gets its own clock back.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
from msgspec import Meta

from tmrl_like.base.options import Options
from tmrl_like.envs.float32 import closed_by_errors
from tmrl_like.errors import (
    ConfigError,
    EnvironmentAwayError,
    EnvironmentFaultError,
    MissingExtraError,
    expect,
)

if TYPE_CHECKING:
    import carla

log = logging.getLogger("tmrl_like.envs")

_TAKEN_WITHIN_M = 6.0
_SLOWEST_FRAMES_S = 1.0  # a simulator that takes longer for a frame does not run in real time
_CLOSE_WITHIN_S = 2.0  # for each answer; less than what an environment has for its `close`


@dataclass(frozen=True, kw_only=True)
class SimulatorOptions(Options):
    """The simulator, and the vehicle in it.

    Attributes:
        host: host on which the simulator runs.
        port: the simulator's port; CARLA uses the next one as well.
        timeout_s: a simulator that does not answer within this many seconds counts as away.
        vehicle: a blueprint of CARLA's library.
        role_name: marks the actors of this worker. Actors that have it at the start are left over
            from an earlier run, and are destroyed.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] = 2000
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 5.0
    vehicle: str = "vehicle.tesla.model3"
    role_name: str = "tmrl_like"

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(
            self.vehicle.startswith("vehicle."),
            "vehicle",
            self.vehicle,
            "a blueprint such as vehicle.tesla.model3",
        )
        expect(
            bool(self.role_name),
            "role_name",
            self.role_name,
            "a name by which this worker's actors are found",
        )


def require_carla() -> None:
    """Raise MissingExtraError if CARLA's client is not installed."""
    try:
        import carla  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "CARLA's client is not installed: pip install 'tmrl_like[carla]' (Linux or Windows, "
            "Python 3.12 at most)"
        ) from None


class CarlaWorld:
    """A world on a running simulator. Each call raises EnvironmentAwayError if the simulator does
    not answer.

    Attributes:
        map: roads and spawn points.
        stands_still: whether time passes only in `next_frame`.
    """

    def __init__(
        self,
        options: SimulatorOptions,
        fixed_step_s: float | None,
        client_cls: Callable[[str, int], Any] | None,
    ) -> None:
        """Connect, remove leftover actors, and set the clock; for the arguments see
        `CarlaInterface`.

        Raises:
            EnvironmentAwayError: no simulator answers, or its version differs from the client's.
        """
        import carla

        self.options, self.stands_still = options, fixed_step_s is not None
        self._made: list[carla.Actor] = []
        self._before: carla.WorldSettings | None = None
        self._newest_frame, self._newest_at = 0, 0.0
        with self.asking():
            self._client: carla.Client = (client_cls or carla.Client)(options.host, options.port)
            self._client.set_timeout(options.timeout_s)
            # before `get_world`, which waits with the interpreter's lock held
            self._check_version()
            self._world = self._client.get_world()
            self.map = self._world.get_map()
            self._before, settings = self._world.get_settings(), self._world.get_settings()
            settings.synchronous_mode, settings.fixed_delta_seconds = (
                self.stands_still,
                fixed_step_s,
            )
            with closed_by_errors(self):  # which set the clock back
                self._world.apply_settings(settings)
                self.next_frame()  # a client knows the actors of the frames that it has seen
                self._remove_leftovers()

    def next_frame(self) -> int:
        """Return the number of the next frame, after ticking a world that stands still, or waiting
        for the frame in one that does not.
        """
        with self.asking():
            if self.stands_still:
                return int(self._world.tick(self.options.timeout_s))
            return int(self._world.wait_for_tick(self.options.timeout_s).frame)

    def snapshot(self) -> carla.WorldSnapshot:
        """Return the newest frame, without a request to the simulator; raise EnvironmentAwayError
        if there has been no new one for long, because the simulator has died.
        """
        with self.asking():
            newest = self._world.get_snapshot()
        now, limit_s = time.monotonic(), min(_SLOWEST_FRAMES_S, self.options.timeout_s)
        if newest.frame != self._newest_frame or self.stands_still:
            self._newest_frame, self._newest_at = newest.frame, now
        elif now - self._newest_at > limit_s:
            raise EnvironmentAwayError(
                f"the CARLA simulator has stood still for {limit_s:g} s: did it end?"
            )
        return newest

    def spawn(
        self,
        kind: str,
        place: carla.Transform,
        attributes: Mapping[str, float],
        parent: carla.Actor | None = None,
    ) -> carla.Actor | None:
        """Make an actor from a blueprint; `close` destroys it. Return None if the place, which is
        relative to its parent if there is one, is taken.

        Raises:
            ConfigError: there is no such blueprint.
            EnvironmentFaultError: the simulator does not answer, or refuses.
        """
        with self.asking():
            try:
                blueprint = self._world.get_blueprint_library().find(kind)
            except IndexError:
                raise ConfigError(f"the simulator has no blueprint {kind!r}") from None
            for name, value in {**attributes, "role_name": self.options.role_name}.items():
                if blueprint.has_attribute(name):
                    blueprint.set_attribute(name, str(value))
            actor = cast(
                "carla.Actor | None", self._world.try_spawn_actor(blueprint, place, parent)
            )
        if actor is not None:
            self._made.append(actor)
        return actor

    def free_spawn_points(self, random: np.random.Generator) -> list[carla.Transform]:
        """Return the map's spawn points that have no vehicle of others nearby, in random order;
        raise EnvironmentFaultError if there are none.
        """
        own = {actor.id for actor in self._made}
        with self.asking():
            others = [
                a.get_location()
                for a in self._actors()
                if a.type_id.startswith("vehicle.") and a.id not in own
            ]
            points = self.map.get_spawn_points()
        free = [p for p in points if all(p.location.distance(o) > _TAKEN_WITHIN_M for o in others)]
        if not free:
            raise EnvironmentFaultError(
                f"none of the {len(points)} spawn points of {self.map.name} is free"
            )
        return [free[i] for i in random.permutation(len(free))]

    def _actors(self) -> list[carla.Actor]:
        """Return all actors of the world, those of other clients included."""
        return [cast("carla.Actor", actor) for actor in self._world.get_actors()]

    def close(self) -> None:
        """Destroy the actors that were made, and give the simulator its own clock back. Never
        raises; calling it twice is fine. A simulator that does not answer is asked no more.
        """
        made, self._made = self._made, []
        before, self._before = self._before, None
        self._client.set_timeout(min(_CLOSE_WITHIN_S, self.options.timeout_s))
        with contextlib.suppress(EnvironmentFaultError):
            self._destroy(made)
            if before is None:
                return
            if before.synchronous_mode:  # the client that set it is gone, so nothing would tick
                before.synchronous_mode, before.fixed_delta_seconds = False, None
            with self.asking():
                self._world.apply_settings(before)

    def _destroy(self, actors: list[carla.Actor]) -> None:
        """Destroy actors, the newest first; raise EnvironmentAwayError if the simulator does not
        answer.
        """
        for actor in actors:
            if actor.type_id.startswith("sensor."):
                sensor = cast("carla.Sensor", actor)
                with contextlib.suppress(RuntimeError):
                    if sensor.is_listening():
                        sensor.stop()
        for actor in reversed(actors):
            try:
                with self.asking():
                    actor.destroy()
            except EnvironmentAwayError:
                raise
            except EnvironmentFaultError as error:
                log.warning("actor %d stays in the simulator: %s", actor.id, error)

    def _check_version(self) -> None:
        theirs, ours = self._client.get_server_version(), self._client.get_client_version()
        if theirs != ours:
            raise EnvironmentAwayError(
                f"the CARLA simulator at {self._address} has version {theirs}, the client here "
                f"{ours}: start a simulator of version {ours}"
            )

    def _remove_leftovers(self) -> None:
        """Destroy the actors that a killed worker has left behind."""
        role_name = self.options.role_name
        left = [actor for actor in self._actors() if actor.attributes.get("role_name") == role_name]
        self._destroy(left)
        if left:
            log.warning(
                "destroyed %d actors with role_name %r that were left over in CARLA",
                len(left),
                role_name,
            )

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Wrap calls of CARLA: turn its errors into EnvironmentFaultError, or EnvironmentAwayError
        if it did not answer.
        """
        try:
            yield
        except RuntimeError as error:
            text = str(error)
            if not text.startswith(("time-out", "resolve")):
                raise EnvironmentFaultError(
                    f"the CARLA simulator at {self._address} refused: {text}"
                ) from None
            raise EnvironmentAwayError(
                f"no CARLA simulator answers at {self._address} ({self.options.timeout_s:g} s): "
                "start it, or change host and port"
            ) from None

    @property
    def _address(self) -> str:
        return f"{self.options.host}:{self.options.port}"
