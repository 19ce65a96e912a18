"""A person at the keyboard drives the racing game, on a screen of the tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DRIVE = """
import json, time
import numpy as np
from tmrl_like.envs.keyboards import Keyboard
from tmrl_like.envs.racing import racing_drivers as drivers
from tmrl_like.envs.racing.racing_game import STATE
from tmrl_like.errors import ConfigError

state, driver, fingers = np.zeros((), STATE), drivers.ArrowKeys(), Keyboard()

def until(*controls):
    deadline = time.monotonic() + 10
    while (now := driver(state)) != controls and time.monotonic() < deadline:
        time.sleep(0.01)
    return now

seen = [until(0.0, 0.0, 0.0)]
fingers.hold(["up", "left"])
seen.append(until(-0.6, 0.5, 0.0))
fingers.hold(["down"])
seen.append(until(0.0, 0.0, 0.6))
fingers.hold(["esc"])
try:
    until()
except ConfigError as error:
    seen.append(str(error))
fingers.close()
driver.close()
print(json.dumps(seen))
"""


@pytest.mark.usefixtures("screen")
def test_arrow_keys_drive_and_escape_gives_up() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVE], cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    *controls, said = json.loads(done.stdout)
    assert controls == [[0.0, 0.0, 0.0], [-0.6, 0.5, 0.0], [0.0, 0.0, 0.6]]
    assert "Escape" in said
