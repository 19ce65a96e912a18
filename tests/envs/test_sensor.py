"""Sensors with their own rate: reading one never waits, and a silent one is named. Time is
injected.
"""

import queue
import threading
from types import SimpleNamespace

import pytest
from kit.fakes import CountingEnv, LinearActor
from kit.waiting import until

from tmrl_like.envs import sensor as module
from tmrl_like.envs.sensor import Sensor, sensors_of
from tmrl_like.errors import ConfigError, EnvironmentFaultError
from tmrl_like.networking import RolloutWorker


class Camera:
    """A camera whose `read` blocks until it is given a value."""

    def __init__(self):
        self._shown = queue.Queue()
        self.asked = threading.Semaphore(0)  # released by each `read` that begins

    def show(self, value):
        """Let `read` return or raise a value; return when the next `read` has begun."""
        self._shown.put(value)
        if not isinstance(value, Exception):
            assert self.asked.acquire(timeout=10)

    def show_last(self, value):
        """Let `read` return the last value: there is no next `read`."""
        self._shown.put(value)

    def read(self):
        self.asked.release()
        value = self._shown.get(timeout=30)
        if isinstance(value, Exception):
            raise value
        return value


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


@pytest.fixture
def camera():
    camera = Camera()
    camera.show_last("first")
    yield camera
    camera.show_last("last")


def started(camera, **options):
    sensor = Sensor("the wrist camera", camera.read, **options)
    for _ in range(2):  # the first read, and the one after it
        assert camera.asked.acquire(timeout=10)
    return sensor


def test_the_newest_value_is_there_with_its_age_while_the_next_one_is_read(clock, camera):
    sensor = started(camera)
    assert (sensor.newest(), sensor.age_s, sensor.period_s) == ("first", 0.0, 0.0)
    clock.now += 0.3
    assert (sensor.newest(), sensor.age_s) == ("first", pytest.approx(0.3))
    # at least: the period is unknown before the second value
    assert sensor.period_s == pytest.approx(0.3)
    clock.now += 0.2
    camera.show("second")
    assert (sensor.newest(), sensor.age_s, sensor.period_s) == ("second", 0.0, pytest.approx(0.5))
    sensor.close()


def test_a_sensor_that_is_silent_for_long_is_a_fault_with_its_name_until_it_speaks(clock, camera):
    sensor = started(camera, silent_after_s=2.0)
    clock.now += 2.0
    assert sensor.newest() == "first"
    clock.now += 0.1
    with pytest.raises(
        EnvironmentFaultError, match=r"^the wrist camera has been silent for 2\.1 s$"
    ):
        sensor.newest()
    camera.show("second")
    assert sensor.newest() == "second"
    sensor.close()


def test_a_read_that_raises_is_a_fault_with_its_name(camera):
    sensor = started(camera)
    camera.show(OSError("the cable is out"))
    told = "the wrist camera cannot be read: OSError: the cable is out"
    until(lambda: fault_of(sensor) == told)
    with pytest.raises(EnvironmentFaultError, match="the joints cannot be read: ZeroDivisionError"):
        Sensor("the joints", lambda: 1 / 0)


def test_a_sensor_that_gives_no_first_value_does_not_start():
    camera = Camera()
    with pytest.raises(
        EnvironmentFaultError, match=r"^the wrist camera gave no value within 0\.05 s of its start$"
    ):
        Sensor("the wrist camera", camera.read, first_within_s=0.05)
    camera.show_last("last")


def fault_of(sensor):
    try:
        sensor.newest()
    except EnvironmentFaultError as error:
        return str(error)
    return ""


def test_a_sensor_that_was_closed_reads_no_more(camera):
    sensor = started(camera)
    sensor.close()
    sensor.close()
    camera.show_last("second")
    until(lambda: sensor.newest() == "second")
    assert not camera.asked.acquire(blocking=False)


def test_times_are_more_than_nothing():
    with pytest.raises(ConfigError, match="silent_after_s is 0"):
        Sensor("the wrist camera", lambda: 1, silent_after_s=0.0)


def test_sensors_of_an_environment_or_its_interface_are_found_and_other_things_are_none(camera):
    sensor = started(camera)
    for listed in ({"wrist": 1}, 7, "wrist", None, ["wrist"]):
        assert sensors_of(SimpleNamespace(sensors=listed)) == ()
    inner = SimpleNamespace(sensors={"wrist": 1}, interface=SimpleNamespace(sensors=[sensor, 7]))
    assert sensors_of(SimpleNamespace(unwrapped=inner)) == (sensor,)
    sensor.close()


def test_a_worker_says_how_old_the_value_of_its_slowest_sensor_is(clock, camera):
    with RolloutWorker(CountingEnv, LinearActor, standalone=True) as worker:
        assert worker.condition().sensor_age_s == 0.0
    sensors = [started(camera)]

    class Env(CountingEnv):
        def reset(self, **how):
            self.sensors = sensors
            return super().reset(**how)

    with RolloutWorker(Env, LinearActor, standalone=True) as worker:
        worker.run_episode()
        clock.now += 0.7
        assert worker.condition().sensor_age_s == pytest.approx(0.7)
    sensors[0].close()
