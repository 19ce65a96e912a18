"""The pictures of the environments' pages: what a person sees beside what an agent sees.

    python docs/figures/pictures.py [drone robot racing doom …] [--folder FOLDER]

Frames are the environments' own, in simulated time; the desktop game's is of a window on an X
server (`xvfb-run`). Of TrackMania and CARLA, which do not run here, it draws what is measured of a
road, and the stand-in of the tests. Needs the extras `mujoco`, `box2d`, `vizdoom`, `desktop`,
`carla` and `plot`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tmrl_like import GenericGymEnv
from tmrl_like.metrics.curves import new_figure

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from kit import simulated

ROOT = Path(__file__).parents[2]


def show(axes: Any, picture: Any, title: str) -> None:
    axes.imshow(picture, cmap="gray", interpolation="nearest")
    axes.set_title(title, fontsize="medium")
    axes.set_axis_off()


def arguments_of(experiment: str) -> dict[str, Any]:
    text = (ROOT / "config" / f"{experiment}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["env"]["init_args"]


def drone(figure: Any) -> None:
    """The drone flies to its target by the rule that an agent learns: towards where it will be."""
    import cv2

    def draw(position: Any, radius: int, colour: tuple[int, int, int], thickness: int) -> None:
        # as the environment renders it
        place = int(200 * position[0]) + 200, int(200 * position[1]) + 200
        cv2.circle(image, place, radius, colour, thickness)

    env = simulated.SimulatedDroneEnv(seed=2)
    obs, _ = env.reset(seed=2)
    image = np.full((400, 400, 3), 255, np.uint8)
    draw(np.concatenate(obs[2:4]), 5, (255, 0, 0), -1)
    for _ in range(20):
        on_its_way = 0.05 * sum(obs[4:])
        way = np.concatenate(obs[2:4]) - np.concatenate(obs[:2]) - on_its_way
        obs, *_ = env.step(np.clip(4 * way, -0.6, 0.6).astype(np.float32))
        draw(env.drone.position, 10, (0, 0, 255), 1)
    show(figure.subplots(), image[80:320, 80:320], "")


def robot(figure: Any) -> None:
    env = simulated.Robot()
    env.reset(seed=1)
    for _ in range(8):
        env.step(np.array((0.8, -0.6), np.float32))
    show(figure.subplots(), env.render(), "")


def racing(figure: Any) -> None:
    """The game driven by the script that follows the road, for five seconds."""
    from tmrl_like.envs.racing.racing_game import Simulation, gas_and_brake
    from tmrl_like.envs.racing.road_driver import follow_road
    from tmrl_like.envs.racing.view import _CAR, _MAX_RANGE, ANGLES, AROUND_CAR, LidarView
    from tmrl_like.envs.vision import Shrink

    game, scan = Simulation(1), LidarView()
    for _ in range(390):
        steering, pedal = follow_road(scan(game.state["frame"]), game.state["speed"])
        game.tick(steering, *gas_and_brake(pedal))
    frame = game.state["frame"]
    left, right = figure.subplots(1, 2)
    show(left, frame, "the game's frame, and the range finders' rays")
    lengths = _MAX_RANGE * scan(frame)
    angles = np.deg2rad(ANGLES)
    for length, angle in zip(lengths, angles, strict=True):
        ends = _CAR[1] + length * np.sin(angle), _CAR[0] - length * np.cos(angle)
        left.plot((_CAR[1], ends[0]), (_CAR[0], ends[1]), color="yellow", linewidth=0.8)
    show(right, Shrink((64, 64), AROUND_CAR)(frame), "the picture, 64×64")


def doom(figure: Any) -> None:
    env = simulated.Doom(**arguments_of("vizdoom"))
    obs, _ = env.reset(seed=3)
    for action in (0, 1, 1, 0):
        obs, *_ = env.step(np.int64(action))
    panels = figure.subplots(1, 2)
    show(panels[0], env._env.render(), "the game's frame")
    show(panels[1], obs[0][-1], "the newest of the agent's frames, 60×80")
    env.close()


def desktop(figure: Any) -> None:
    """The game of the page, with gas for six seconds."""
    import re
    import sys
    import time

    from tmrl_like.envs.desktop import DesktopGameEnv

    page = (ROOT / "docs" / "environments" / "desktop.md").read_text(encoding="utf-8")
    fences = dict(re.findall(r"^```(python|yaml)\n(.*?)^```", page, re.M | re.S)[:2])
    names: dict[str, Any] = {}
    exec(fences["python"], names)
    arguments = yaml.safe_load(fences["yaml"])["env"]["init_args"]
    game = arguments.pop("interface")["init_args"]
    game["command"][0] = sys.executable
    env = DesktopGameEnv(lambda: names["CarOnScreen"](**game), **arguments)
    obs, _ = env.reset()
    until = time.monotonic() + 6
    while time.monotonic() < until:
        obs, *_ = env.step(np.array([0.0, 1.0], np.float32))
    panels = figure.subplots(1, 2)
    show(panels[0], env.render(), "the window")
    show(panels[1], obs[0][-1], "the newest of the agent's pictures, 64×64")
    env.close()


def trackmania(figure: Any) -> None:
    """A road drawn as the plane that a camera sees, between black borders, and the distances
    measured in it.
    """
    from tmrl_like.envs.trackmania.trackmania_env import _LIDAR_ANGLES, _LIDAR_PLACE, Lidar

    width, height = _LIDAR_PLACE[2:]
    rows, columns = np.mgrid[:height, :width]
    depth = 90.0 / np.maximum(rows - 0.34 * height, 1.0)
    across = (columns - width / 2) * depth / 90.0 - 0.12 * depth**2
    frame = np.full((height, width, 3), (125, 165, 205), np.uint8)
    ground = rows > 0.36 * height
    frame[ground] = (90, 130, 80)
    frame[ground & (abs(across) < 2.3 + 0.03 * depth)] = (10, 10, 10)
    frame[ground & (abs(across) < 2.1)] = (140, 140, 140)
    axes = figure.subplots()
    show(axes, frame, "a drawn road, and the 19 distances to its black borders")
    row, column = height * 44 // 49, width // 2
    for length, angle in zip(Lidar()(frame), np.deg2rad(list(_LIDAR_ANGLES)), strict=True):
        axes.plot(
            (column, column + length * np.sin(angle)),
            (row, row - length * np.cos(angle)),
            color="red",
            linewidth=1,
        )


def carla(figure: Any) -> None:
    """The car of the stand-in seen from above, and what it sees."""
    from carla_stand_in import Client, Simulator

    from tmrl_like.envs.carla import CarlaSyncEnv, SensorOptions

    simulator = Simulator(
        walls=[(100.0, 9.0, 2.0), (112.0, -12.0, 2.0), (92.0, -4.0, 1.5), (70.0, 8.0, 2.0)]
    )
    env = CarlaSyncEnv(
        0.1,
        sensors=SensorOptions(camera=None, lidar_bins=32),
        client_cls=lambda *where: Client(simulator=simulator),
    )
    obs, info = env.reset(seed=1)
    while info["position"][0] < 85.0:
        obs, _, _, _, info = env.step(np.array((0.5, 0.02 * float(obs[1][4])), np.float32))
    ahead, ranges = obs[1].reshape(2, -1), obs[2]
    angles = 2 * np.pi * np.arange(len(ranges)) / len(ranges)
    axes = figure.subplots()
    for index, (angle, range_m) in enumerate(zip(angles, ranges, strict=True)):
        label = "ranges" if index == 0 else None
        axes.plot(
            (0, range_m * np.sin(angle)),
            (0, range_m * np.cos(angle)),
            color="0.7",
            linewidth=1,
            label=label,
        )
    axes.plot(ahead[1], ahead[0], "o-", color="C0", label="points on the route")
    axes.plot(0, 0, "^", color="C3", markersize=12, label="the car")
    axes.set(xlabel="m to the right", ylabel="m forward", aspect="equal")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    env.close()


def pendulum(figure: Any) -> None:
    env = GenericGymEnv("Pendulum-v1", {"render_mode": "rgb_array"})
    env.reset(seed=1)
    env.step(np.array([1.0], np.float32))
    show(figure.subplots(), env.render(), "")


SIZES = {  # inches
    drone: (3, 3),
    robot: (3, 3),
    racing: (7, 3.6),
    doom: (7, 2.9),
    desktop: (7, 3.2),
    trackmania: (7, 3.8),
    carla: (7, 4),
    pendulum: (3, 3),
}


def main() -> None:
    by_name = {function.__name__: function for function in SIZES}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(by_name))
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "environments" / "figures")
    arguments = parser.parse_args()
    for name in arguments.names:
        figure = new_figure(*SIZES[by_name[name]])
        by_name[name](figure)
        figure.savefig(arguments.folder / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
