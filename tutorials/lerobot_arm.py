"""An arm of LeRobot (https://github.com/huggingface/lerobot) as an environment, and its leader arm
as a driver.

    tmrl-like run tutorials/lerobot_arm.yaml     learns on a simulated arm; name yours in the YAML

Of LeRobot's robot class, six members are used: `action_features`, `is_connected`, `connect`,
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

LIMIT = 40.0  # furthest goal of a joint from the middle of its range
MAX_MOVE = 4.0  # furthest move of a goal in a step: at 20 steps a second, 80 units a second
# furthest distance of a goal ahead of its joint, so that an arm that was held does not spring away
MAX_LEAD = 12.0
REACHED = 4.0


def so101(**config):
    """Make an SO-101 follower arm from the arguments of LeRobot's configuration: `port`, `id`,
    `use_degrees`, ….
    """
    from lerobot.robots.so_follower import SO101Follower, SO101FollowerConfig

    return SO101Follower(SO101FollowerConfig(**config))


def so101_leader(**config):
    """Make an SO-101 leader arm, which a person moves, from LeRobot's arguments."""
    from lerobot.teleoperators.so_leader import SO101Leader, SO101LeaderConfig

    return SO101Leader(SO101LeaderConfig(**config))


class ReachPose(RealTimeGymInterface):
    """Bring all joints to a pose that each reset draws.

    Observation, each float32 [J]: the joints' positions, the pose minus these positions, and the
    joints' goals.
    Action, float32 [J], -1 to 1: how far each joint's goal moves, as a share of `MAX_MOVE`.
    """

    def __init__(self, make_robot):
        """Make the robot, without opening a port: a trainer makes one, too, to read the spaces."""
        self._robot = make_robot()
        self._joints = [name for name in self._robot.action_features if name.endswith(".pos")]
        self._bus = threading.RLock()  # LeRobot's bus takes one call at a time
        self._random = np.random.default_rng()
        self._goal = self._pose = np.zeros(len(self._joints), np.float32)
        self._position = None  # before the first observation, and after `close`
        self.moves_hardware = getattr(self._robot, "moves_hardware", True)

    def get_observation_space(self):
        bounds, shape = (180.0, 2 * LIMIT, 180.0), (len(self._joints),)
        return spaces.Tuple([spaces.Box(-bound, bound, shape) for bound in bounds])

    def get_action_space(self):
        return spaces.Box(-1.0, 1.0, (len(self._joints),))

    def get_default_action(self):
        return np.zeros(len(self._joints), np.float32)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._random = np.random.default_rng(seed)
        if not self._robot.is_connected:
            # calibrate beforehand with LeRobot's own command, which needs a person to answer
            self._robot.connect(calibrate=False)
        self._pose = self._random.uniform(-LIMIT, LIMIT, len(self._joints)).astype(np.float32)
        obs = self._observe()
        obs[2] = self._goal = self._position
        return obs, {}

    def send_control(self, control):
        """Move the goals. The next step starts from what LeRobot really sent, which may be less
        (`max_relative_target`).
        """
        if control is not None:
            # a joint that begins beyond the limits comes in, and no faster than it may move
            low = np.minimum(-LIMIT, self._goal + MAX_MOVE)
            high = np.maximum(LIMIT, self._goal - MAX_MOVE)
            goal = np.clip(self._goal + MAX_MOVE * control, low, high)
            self._send(np.clip(goal, self._position - MAX_LEAD, self._position + MAX_LEAD))

    def get_obs_rew_terminated_info(self):
        obs = self._observe()
        distance = np.abs(obs[1])
        return obs, np.float32(-distance.mean() / LIMIT - 0.1), bool(distance.max() < REACHED), {}

    def wait(self):
        """Hold the arm where it is, between two episodes."""
        self._observe()
        self._send(self._position)

    def stop(self):
        """Hold the arm at its last known position, because nobody drives any more.

        Called by another thread, while the control thread may hang in a call of the bus.
        """
        if self._position is None:  # nothing was sent yet, and any goal would move the arm
            return
        if not self._bus.acquire(timeout=0.03):
            raise TimeoutError("the bus hangs: the arm does not hear a stop")
        try:
            self._send(self._position)
        finally:
            self._bus.release()

    def close(self):
        if self._robot.is_connected:
            self._robot.disconnect()
        self._position = None

    def _observe(self):
        # LeRobot 0.4 reads cameras in threads of their own, so that only the bus takes time, a few
        # milliseconds
        with self._bus:
            measured = self._robot.get_observation()
        self._position = np.float32([measured[joint] for joint in self._joints])
        way = np.clip(self._pose - self._position, -2 * LIMIT, 2 * LIMIT)
        return [self._position, way, self._goal]

    def _send(self, goal):
        with self._bus:
            sent = self._robot.send_action(dict(zip(self._joints, map(float, goal), strict=True)))
        self._goal = np.float32([sent[joint] for joint in self._joints])


class ArmEnv(RealTimeEnv):
    """The arm at 20 Hz. Observations hold the last five actions, which cover the time that their
    effect lasts.
    """

    def __init__(
        self, robot, time_step_duration: float = 0.05, ep_max_length: int = 60, act_buf_len: int = 5
    ):
        """Make the environment; `robot` makes LeRobot's robot. The rest is as in `RealTimeEnv`."""
        super().__init__(partial(ReachPose, robot), time_step_duration, ep_max_length, act_buf_len)


class LeaderArm:
    """Driver that makes the follower arm copy the leader arm while a person moves the leader."""

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
            action_space: action space of `ReachPose`; unused.
            default_action: unused.
            leader: makes the teleoperator of LeRobot.
            moved: how far, in LeRobot's units, a joint must move for it to count as a movement.
            give_back_after_s: seconds without a movement after which the policy drives again.
        """
        self._leader = leader()
        self._leader.connect(calibrate=False)
        self._moved, self._lasts_s = moved, give_back_after_s
        self._before = self._where()
        self._until = 0.0

    def __call__(self, obs):
        """Return the action that moves the follower to the leader, or None if nobody moves it."""
        where, now = self._where(), time.monotonic()
        if np.abs(where - self._before).max() > self._moved:
            self._before, self._until = where, now + self._lasts_s
        if now >= self._until:
            return None
        # the last action was sent after the goals were observed. Half the way, because this answer
        # may be a step late, and the whole way would then swing
        goals = obs[2] + MAX_MOVE * obs[-1]
        return np.clip(0.5 * (where - goals) / MAX_MOVE, -1.0, 1.0)

    def _where(self):
        return np.float32(
            [value for name, value in self._leader.get_action().items() if name.endswith(".pos")]
        )

    def close(self):
        self._leader.disconnect()


class SimulatedArm:
    """Stand-in for a robot of LeRobot: joints that follow their goals with a lag of 0.1 s, at no
    more than 150 units a second.
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
