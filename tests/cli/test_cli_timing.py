"""The times that `tmrl-like check` reports: percentiles of steps, and the rates of sensors."""


def test_the_time_of_steps_is_shown_in_percentiles(typed, out_of):
    out = out_of("check TINY --timing 50")
    assert "50 steps, milliseconds" in out
    assert "it does not run in real time" in out
    timed = typed("check drone --timing 5 --env.time_step_duration 0.0025")
    assert "time-step asked for: 2.5 ms" in timed.out


def test_observations_that_repeat_the_value_of_a_sensor_are_noted(out_of):
    out = out_of("check TINY --env tiny.SlowCameraEnv --delay-steps 0")
    assert "sensor: the camera gives a value every " in out
    assert "observations in a row have the same value of the camera" in out
