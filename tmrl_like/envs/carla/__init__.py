"""Cars in the CARLA simulator: in real time on the simulator's clock, or step by step while it
stands still.

Needs the extra `carla`. `vehicle` has the typed state and action of a vehicle; `world` the
connection; `sensors` camera, lidar, collisions and crossed lines; `route` the route and the task.
`interface` puts them together.
"""

from tmrl_like.envs.carla.interface import CarlaEnv, CarlaInterface, CarlaSyncEnv
from tmrl_like.envs.carla.route import RouteOptions
from tmrl_like.envs.carla.sensors import SensorOptions
from tmrl_like.envs.carla.vehicle import VehicleAction, VehicleState
from tmrl_like.envs.carla.world import SimulatorOptions

__all__ = [
    "CarlaEnv",
    "CarlaInterface",
    "CarlaSyncEnv",
    "RouteOptions",
    "SensorOptions",
    "SimulatorOptions",
    "VehicleAction",
    "VehicleState",
]
