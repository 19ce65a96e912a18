"""An arm of LeRobot (https://github.com/huggingface/lerobot) as an environment, and its leader arm
as a driver.

    tmrl-like run tutorials/lerobot_arm.yaml     learns on a simulated arm; in the YAML, name yours

What LeRobot calls a robot needs six members here: `action_features`, `is_connected`, `connect`,
`get_observation`, `send_action` and `disconnect`. Positions are in LeRobot's units: degrees, or
-100 to 100.
"""

import threading
import time

import numpy as np
from gymnasium import spaces
from rtgym import RealTimeGymInterface

from tmrl_like import partial
from tmrl_like.envs.real_time import RealTimeEnv

LIMIT = 40.0  # how far from the middle of its range a joint may be ordered
MAX_MOVE = 4.0  # by how much a goal moves in a step: with 20 steps a second 80 units a second
# how far a goal may be ahead of its joint: an arm that is held does not spring away afterwards
MAX_LEAD = 12.0
REACHED = 4.0


def so101(**config):
    """An SO-101 of yours, by the arguments of LeRobot's configuration: `port`, `id`, `use_degrees`,
    ….
    """
    from lerobot.robots.so_follower import SO101Follower, SO101FollowerConfig

    return SO101Follower(SO101FollowerConfig(**config))


def so101_leader(**config):
    """The arm that a person moves, likewise."""
    from lerobot.teleoperators.so_leader import SO101Leader, SO101LeaderConfig

    return SO101Leader(SO101LeaderConfig(**config))


class ReachPose(RealTimeGymInterface):
    """Bring all joints to a pose that each reset draws.

    Observation, each float32 [J]: the joints' positions, and the way to the pose. Action, float32
    [J], -1 to 1: by how much of `MAX_MOVE` each joint's goal moves.
    """

    def __init__(self, make_robot):
        """Opens no port: a trainer makes one, too, to see the spaces."""
        self._robot = make_robot()
        self._joints = [name for name in self._robot.action_features if name.endswith(".pos")]
        self._bus = threading.RLock()  # LeRobot's takes one call at a time
        self._random = np.random.default_rng()
        self._goal = self._position = self._pose = np.zeros(len(self._joints), np.float32)
        self.moves_hardware = getattr(self._robot, "moves_hardware", True)

    def get_observation_space(self):
        shape = (len(self._joints),)
        return spaces.Tuple(
            [spaces.Box(-180.0, 180.0, shape), spaces.Box(-2 * LIMIT, 2 * LIMIT, shape)]
        )

    def get_action_space(self):
        return spaces.Box(-1.0, 1.0, (len(self._joints),))

    def get_default_action(self):
        return np.zeros(len(self._joints), np.float32)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._random = np.random.default_rng(seed)
        if not self._robot.is_connected:
            # calibrate it with LeRobot's own command: that asks questions
            self._robot.connect(calibrate=False)
        self._pose = self._random.uniform(-LIMIT, LIMIT, len(self._joints)).astype(np.float32)
        obs = self._observe()
        self._goal = self._position
        return obs, {}

    def send_control(self, control):
        """Move the goals; what LeRobot makes of them (`max_relative_target`) is what the next step
        begins with.
        """
        if control is not None:
            goal = np.clip(self._goal + MAX_MOVE * control, -LIMIT, LIMIT)
            self._send(np.clip(goal, self._position - MAX_LEAD, self._position + MAX_LEAD))

    def get_obs_rew_terminated_info(self):
        obs = self._observe()
        distance = np.abs(obs[1])
        return obs, np.float32(-distance.mean() / LIMIT - 0.1), bool(distance.max() < REACHED), {}

    def wait(self):
        """Between two episodes the arm stays where it is."""
        self._observe()
        self._send(self._position)

    def stop(self):
        """Nobody drives any more: the arm stays where it is. Another thread calls it, while one may
        hang in the bus.
        """
        if self._bus.acquire(timeout=0.03):
            try:
                self._send(self._position)
            finally:
                self._bus.release()

    def close(self):
        if self._robot.is_connected:
            self._robot.disconnect()

    def _observe(self):
        # cameras of LeRobot 0.4 read in threads of their own: it takes what the bus takes, a few
        # milliseconds
        with self._bus:
            measured = self._robot.get_observation()
        self._position = np.float32([measured[joint] for joint in self._joints])
        return [self._position, np.clip(self._pose - self._position, -2 * LIMIT, 2 * LIMIT)]

    def _send(self, goal):
        with self._bus:
            sent = self._robot.send_action(dict(zip(self._joints, map(float, goal), strict=True)))
        self._goal = np.float32([sent[joint] for joint in self._joints])


class ArmEnv(RealTimeEnv):
    """The arm at 20 Hz, with the last five actions in its observation: their effect lasts so
    long.
    """

    def __init__(
        self, robot, time_step_duration: float = 0.05, ep_max_length: int = 60, act_buf_len: int = 5
    ):
        """As `RealTimeEnv`; `robot` makes what LeRobot calls a robot."""
        super().__init__(partial(ReachPose, robot), time_step_duration, ep_max_length, act_buf_len)


class LeaderArm:
    """Drives in place of the policy while somebody moves the leader arm: the follower goes where
    the leader is.
    """

    def __init__(
        self,
        action_space,
        default_action,
        leader,
        moved: float = 1.0,
        give_back_after_s: float = 1.0,
    ):
        """Connect the leader.

        Args:
            action_space: of `ReachPose`.
            default_action: not needed.
            leader: makes what LeRobot calls a teleoperator.
            moved: how much a joint must have moved since the last look.
            give_back_after_s: after so long without a movement the policy drives again.
        """
        self._leader = leader()
        self._leader.connect(calibrate=False)
        self._moved, self._lasts_s = moved, give_back_after_s
        self._before = self._where()
        self._until = 0.0

    def __call__(self, obs):
        """The action that brings the follower to the leader; None: nobody moves it."""
        where, now = self._where(), time.monotonic()
        if np.abs(where - self._before).max() > self._moved:
            self._before, self._until = where, now + self._lasts_s
        return np.clip((where - obs[0]) / MAX_MOVE, -1.0, 1.0) if now < self._until else None

    def _where(self):
        return np.float32(
            [value for name, value in self._leader.get_action().items() if name.endswith(".pos")]
        )

    def close(self):
        self._leader.disconnect()


class SimulatedArm:
    """Stands in for a robot of LeRobot: joints that follow their goals with a lag of 0.1 s, at 150
    units a second.
    """

    moves_hardware = False
    is_connected = False

    def __init__(self, joints: int = 3):
        self.action_features = {f"joint_{k + 1}.pos": float for k in range(joints)}
        self._position, self._goal = np.zeros((2, joints))
        self._at = time.monotonic()

    def connect(self, calibrate=True):
        self.is_connected = True

    def get_observation(self):
        now = time.monotonic()
        passed, self._at = now - self._at, now
        way = (self._goal - self._position) * (1.0 - np.exp(-passed / 0.1))
        self._position = self._position + np.clip(way, -150.0 * passed, 150.0 * passed)
        return dict(zip(self.action_features, self._position.tolist(), strict=True))

    def send_action(self, action):
        self.get_observation()
        self._goal = np.array([action[name] for name in self.action_features])
        return action

    def disconnect(self):
        self.is_connected = False
