"""The tests' game in its own window, and its interface."""

import sys
from pathlib import Path

import psutil
from kit.ports import free_port

from tmrl_like.base.functional import partial
from tmrl_like.envs.desktop.desktop_env import DesktopGameInterface
from tmrl_like.envs.desktop.telemetry import Telemetry

GAMES = Path(__file__).parents[1] / "kit" / "games.py"
TITLE = "Square Game"


def command_of(title=TITLE):
    """Return the command that starts the game, with a free port."""
    return [sys.executable, str(GAMES), "Square", title, str(free_port())]


def process_of(command):
    """Return the process of a game that was started by this command."""
    children = psutil.Process().children()
    return next(child for child in children if child.cmdline()[1:] == command[1:])


class SquareGame(DesktopGameInterface):
    """The game's interface. Reward: the square's position according to the game; terminates at the
    right end.
    """

    def __init__(self, command, **options):
        known = {
            "axes": [("left", "right")],
            "restart_key": "r",
            "restart_wait_s": 0.1,
            "frozen_after_s": 1.0,
            "telemetry": partial(Telemetry, "<2f", int(command[-1])),
        }
        super().__init__(TITLE.lower(), command=command, **known | options)

    def judge(self, frame, record):
        where = float(record[0]) if record else 0.0
        return where, where == 1.0, {}
