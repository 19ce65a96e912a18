"""Sensors with their own rate: reading one never waits, and a silent one is named. Time is
injected.
"""

import queue
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from house import alone
from kit.clocks import LoopTime
from kit.environments import calling
from kit.waiting import until

from tmrl_like.envs import sensor as module
from tmrl_like.envs.sensor import Sensor, sensors_of
from tmrl_like.errors import EnvironmentFaultError


class Camera:
    """A camera whose `read` blocks until it is given a value."""

    def __init__(self):
        self.shown = queue.Queue()
        self.asked = threading.Semaphore(0)  # released by each `read` that begins

    def show(self, value):
        """Let `read` return a value; return when the next `read` has begun."""
        self.shown.put(value)
        assert self.asked.acquire(timeout=10)

    def read(self):
        self.asked.release()
        value = self.shown.get(timeout=30)
        if isinstance(value, Exception):
            raise value
        return value


@pytest.fixture
def clock(monkeypatch):
    clock = LoopTime()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def camera():
    camera = Camera()
    camera.shown.put("first")
    yield camera
    camera.shown.put("last")


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


def test_a_read_that_raises_is_a_fault_with_its_name(camera):
    sensor = started(camera)
    camera.shown.put(OSError("the cable is out"))
    told = "^the wrist camera cannot be read: OSError: the cable is out$"
    with pytest.raises(EnvironmentFaultError, match=told):
        until(lambda: sensor.newest() != "first")
    with pytest.raises(EnvironmentFaultError, match="the joints cannot be read: ZeroDivisionError"):
        Sensor("the joints", lambda: 1 / 0)


def test_a_read_that_returns_the_same_array_again_is_a_fault_that_says_what_is_expected(camera):
    sensor, picture = started(camera), np.zeros(2)
    camera.show(picture)
    camera.shown.put(picture)
    told = "cannot be read: TypeError: read returned the same ndarray again; expected a function"
    with pytest.raises(EnvironmentFaultError, match=told):
        until(lambda: sensor.newest() is None)


def test_a_sensor_that_was_closed_reads_no_more(camera):
    sensor = started(camera)
    sensor.close()
    sensor.close()
    camera.shown.put("second")
    until(lambda: sensor.newest() == "second")
    assert not camera.asked.acquire(blocking=False)


def test_sensors_of_an_environment_or_its_interface_are_found_and_other_things_are_none(camera):
    sensor = started(camera)
    for listed in (7, "wrist", None, ["wrist"]):
        assert sensors_of(SimpleNamespace(sensors=listed)) == ()
    inner = SimpleNamespace(sensors={"wrist": 1}, interface=SimpleNamespace(sensors=[sensor, 7]))
    assert sensors_of(SimpleNamespace(unwrapped=inner)) == (sensor,)
    sensor.close()


def test_a_worker_says_how_old_the_value_of_its_slowest_sensor_is(clock, camera):
    def begin(env):
        env.sensors = [sensor]

    with alone(calling(begin)) as worker:
        assert worker.condition().sensor_age_s == 0.0
        sensor = started(camera)
        worker.run_episode()
        clock.now += 0.7
        assert worker.condition().sensor_age_s == pytest.approx(0.7)
    sensor.close()
