"""The tutorials run unchanged, with options that shorten them."""

import contextlib
import importlib
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import gymnasium
import numpy as np
import pytest
import torch
from kit.clocks import LoopTime
from kit.pythons import python
from kit.solo import episode, return_of

from tmrl_like import load_policy
from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.config.settings import Settings
from tmrl_like.envs.clock import Clock
from tmrl_like.envs.real_time import ClockedGym
from tmrl_like.policies.export import write_onnx
from tmrl_like.policies.policy_file import describe
from tmrl_like.policies.policy_store import PolicyStore
from tmrl_like.replay import ReplayMemory

TUTORIAL = Path(__file__).parents[1] / "tutorials" / "drone_tutorial.py"


LATE = "ignore:Time-step timed out:UserWarning"  # on a busy machine


_THEN_CLIMB = """
import runpy
import sys
import torch

tutorial = runpy.run_path(sys.argv.pop(1), run_name="__main__")
torch.manual_seed(0)
agent = tutorial["DroneAgent"](tutorial["observation_space"], tutorial["action_space"])
obs = tuple(torch.rand(256, *space.shape) - 0.5 for space in tutorial["observation_space"])
act = 4 * torch.rand(256, 2) - 2
reward, ended = act[:, 0], torch.ones(256)


def value():
    return agent.get_actor()(obs, test=True)[0][:, 0].mean().item()


before = value()
for _ in range(150):
    agent.train((obs, act, reward, obs, ended, 0 * ended))
print(f"the value rose: {value() > before + 0.5} ({before:.2f} -> {value():.2f})")
"""


def test_the_drone_tutorial_runs_with_crc_debugging_and_its_agent_learns(own_home):
    """It must learn that every episode ends at once, with the first action as its reward."""
    options = ("--crc-debug", "--steps", "5", "--epochs", "1")
    script = ("-W", LATE, "-c", _THEN_CLIMB, TUTORIAL, *options)
    shown = "".join(python("-W", "error", *script, TMRL_LIKE_HOME=str(own_home)))
    assert "flights reached the target" in shown
    assert "CRC check" in shown
    assert "the value rose: True" in shown


def test_a_data_set_of_lerobot_becomes_one_that_a_memory_begins_with(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "observation.state": [
            [episode, step] for episode in (0.0, 1.0) for step in (0.0, 1.0, 2.0)
        ],
        "action": [[0.0]] * 6,
        "next.reward": [0.0, 1.0, 2.0] * 2,
        "next.done": [False, False, True, False, False, False],
        "episode_index": [0, 0, 0, 1, 1, 1],
    }
    folder = tmp_path / "data" / "chunk-000"
    folder.mkdir(parents=True)
    parquet.write_table(pyarrow.table(columns), folder / "file-000.parquet")
    script = TUTORIAL.with_name("lerobot_data_set.py")
    assert python("-W", "error", script, tmp_path, tmp_path / "flights")[0] == "7 samples\n"
    memory = ReplayMemory(dataset_path=tmp_path / "flights")
    transitions = map(memory.get_transition, range(5))
    assert sorted((*t.last_obs, *t.obs, t.rew, t.terminated, t.truncated) for t in transitions) == [
        (0.0, 0.0, 0.0, 1.0, 0.0, False, False),
        (0.0, 1.0, 0.0, 2.0, 1.0, False, False),
        (0.0, 2.0, 0.0, 2.0, 2.0, True, False),  # nothing was observed after the last action
        (1.0, 0.0, 1.0, 1.0, 0.0, False, False),
        (1.0, 1.0, 1.0, 2.0, 1.0, False, True),
    ]
    assert len(memory) == 5


_ALONE = """
import runpy
import sys
sys.modules["tmrl_like"] = None
runpy.run_path(sys.argv.pop(1))
"""


def test_a_policy_drives_the_pendulum_as_onnx_without_tmrl_like(own_home, tmp_path):
    env = gymnasium.make("Pendulum-v1")
    torch.manual_seed(0)
    actor = SquashedGaussianActor(env.observation_space, env.action_space)
    PolicyStore(Settings(run_name="pendulum").paths.policies).add(actor.weights(), describe(actor))
    write_onnx(policy := load_policy("pendulum"), tmp_path / "p.onnx")
    script = TUTORIAL.with_name("pendulum_with_onnx.py")
    shown, _ = python("-W", "error", "-c", _ALONE, script, tmp_path / "p.onnx")
    total = return_of(episode(env, policy.act, seed=0))
    assert float(shown.split()[1]) == pytest.approx(total, abs=0.5)


@pytest.mark.long
def test_twenty_lines_print_the_return_before_and_after_and_leave_a_picture(own_home, tmp_path):
    script = TUTORIAL.with_name("twenty_lines.py")
    assert len(script.read_text().splitlines()) <= 20
    shown, _ = python("-W", "error", script, "100", cwd=tmp_path, TMRL_LIKE_HOME=str(own_home))
    assert re.fullmatch(r"return before: -\d+\nreturn after: -\d+\n", shown)
    assert (tmp_path / "pendulum.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_eight_environments_behind_a_web_service_are_stepped_in_lockstep(own_home):
    script = TUTORIAL.with_name("slow_simulator.py")
    options = ("--delay", "0.005", "--envs", "3", "--steps", "10")
    shown, _ = python("-W", "error", script, *options, TMRL_LIKE_HOME=str(own_home))
    found = re.findall(r"allowed a training step: (\d+); training steps: (\d+)", shown)
    ((tasks, done),) = found
    assert tasks == done
    assert int(tasks) > 150


@pytest.fixture
def arm_tutorial(monkeypatch):
    monkeypatch.syspath_prepend(str(TUTORIAL.parent))
    return importlib.import_module("lerobot_arm")


class _Robot:
    """A stand-in for a robot of LeRobot with three joints, which move at once, but by at most 2
    units per step.
    """

    is_connected = False

    def __init__(self):
        self.at = {"joint_1.pos": 0.0, "joint_2.pos": 0.0, "joint_3.pos": 90.0}
        self.action_features = [*self.at, "speed"]

    def connect(self, calibrate=True):
        assert (calibrate, self.is_connected) == (False, False)
        self.is_connected = True

    def get_observation(self):
        return self.at | {"camera": "a picture"}

    def send_action(self, action):
        self.at = {
            joint: at + min(max(action[joint] - at, -2.0), 2.0) for joint, at in self.at.items()
        }
        return self.at

    def disconnect(self):
        self.is_connected = False


def test_a_robot_of_lerobot_is_brought_to_a_pose_within_its_limits_and_by_what_was_really_sent(
    arm_tutorial,
):
    robot = _Robot()
    with contextlib.closing(arm_tutorial.ReachPose(lambda: robot)) as task:
        (position, way, goal), _ = task.reset(seed=0)
        assert position.tolist() == goal.tolist() == [0.0, 0.0, 90.0]
        terminated, steps = False, 0
        while not terminated:
            task.send_control(np.clip(way / arm_tutorial.MAX_MOVE, -1.0, 1.0))
            (position, way, goal), _, terminated, _ = task.get_obs_rew_terminated_info()
            assert goal.tolist() == [*robot.at.values()]
            steps += 1
        assert steps < 80
        assert np.abs(way).max() < arm_tutorial.REACHED
        assert np.abs(position).max() < arm_tutorial.LIMIT + arm_tutorial.REACHED
        robot.at["joint_1.pos"] = -100.0  # held far from its goal, which follows it
        task.get_obs_rew_terminated_info()
        task.send_control(np.ones(3, np.float32))
        assert robot.at["joint_1.pos"] <= -100.0 + arm_tutorial.MAX_LEAD
        assert task.reset()[0][0].tolist() == [*robot.at.values()]
        before = robot.at
        task.send_control(np.ones(3, np.float32))
        task.stop()
        assert robot.at == before  # the position seen last
    assert not robot.is_connected


def test_a_stop_that_the_arm_does_not_hear_is_no_stop(arm_tutorial):
    """Whoever asked for it would otherwise take back what stops the arm from outside."""
    reads, is_over = threading.Event(), threading.Event()
    robot = _Robot()
    task = arm_tutorial.ReachPose(lambda: robot)
    task.reset()
    robot.get_observation = lambda: [reads.set(), is_over.wait(60), robot.at][-1]
    with ThreadPoolExecutor() as pool:
        hanging = pool.submit(task.get_obs_rew_terminated_info)
        assert reads.wait(60)
        with pytest.raises(TimeoutError, match="the bus hangs"):
            task.stop()
        is_over.set()
        hanging.result()
    task.stop()


def test_a_stop_moves_no_arm_whose_position_is_not_known_yet_or_not_any_more(arm_tutorial):
    """After it was closed its motors are off; once they are on again, it may be anywhere."""
    robot, no_answer = MagicMock(action_features=["joint_1.pos"]), ConnectionError("no answer")
    robot.get_observation.side_effect = [no_answer, {"joint_1.pos": 80.0}, no_answer]
    task = arm_tutorial.ReachPose(lambda: robot)
    for answers in (False, True, False):
        with contextlib.nullcontext() if answers else pytest.raises(ConnectionError):
            task.reset()
            task.close()
        task.stop()
    robot.send_action.assert_not_called()


def test_an_arm_parked_beyond_the_goals_comes_in_by_no_more_than_a_goal_may_move(arm_tutorial):
    robot = MagicMock(action_features=["joint_1.pos"], is_connected=True)
    robot.get_observation.return_value = {"joint_1.pos": 90.0}
    robot.send_action.side_effect = lambda action: action
    task = arm_tutorial.ReachPose(lambda: robot)
    task.reset()
    for control in (0.0, 0.0, 1.0, -1.0):
        task.send_control(np.float32([control]))
    sent = [call.args[0]["joint_1.pos"] for call in robot.send_action.call_args_list]
    assert sent == [86.0, 82.0, 78.0, 78.0]  # the last is as far as a goal may be from its joint


def test_the_leader_arm_drives_while_somebody_moves_it(arm_tutorial, monkeypatch):
    clock, leader = LoopTime(), MagicMock()
    monkeypatch.setattr(arm_tutorial, "time", clock)
    where = leader.get_action.return_value = {"a.pos": 0.0, "b.pos": 0.0, "gripper.current": 7.0}
    driver = arm_tutorial.LeaderArm(None, None, lambda: leader)
    obs = *np.zeros((2, 2), np.float32), np.float32([6.0, 3.0]), np.float32([-1.0, -0.75])
    assert driver(obs) is None
    where["a.pos"] = 4.0
    assert driver(obs).tolist() == [0.25, 0.0]
    clock.now += 0.9
    assert driver(obs).tolist() == [0.25, 0.0]
    clock.now += 0.2
    assert driver(obs) is None
    where["a.pos"] = 60.0
    assert driver(obs).tolist() == [1.0, 0.0]
    driver.close()
    leader.connect.assert_called_once_with(calibrate=False)
    leader.disconnect.assert_called_once()


@pytest.mark.parametrize("late", [0, 1])  # beside a control loop its answer is a step late
def test_the_follower_comes_to_where_the_leader_arm_is_and_stays(arm_tutorial, monkeypatch, late):
    time, leader = LoopTime(), MagicMock()
    monkeypatch.setattr(arm_tutorial, "time", time)
    where = leader.get_action.return_value = {"joint_1.pos": 0.0}
    driver = arm_tutorial.LeaderArm(None, None, lambda: leader, give_back_after_s=60.0)
    interface = partial(arm_tutorial.ReachPose, lambda: arm_tutorial.SimulatedArm(1))
    config = {"interface": interface, "time_step_duration": 0.05, "start_obs_capture": 0.05}
    env = ClockedGym(config, Clock(0.0, time.monotonic, time.sleep))
    monkeypatch.setattr(arm_tutorial, "REACHED", 0.0)  # no pose ends the episode
    obs, _ = env.reset(seed=0)
    where["joint_1.pos"] = 20.0
    answers, way = [np.zeros(1, np.float32)] * late, []
    for _ in range(60):
        answers.append(driver(obs))
        obs, *_ = env.step(answers.pop(0))
        way.append(float(obs[0][0]))
    assert max(way) < 20.5
    assert way[20:] == pytest.approx([20.0] * 40, abs=0.5)


def test_joints_behind_ros_2_are_read_at_their_own_rate_and_stand_in_the_end(monkeypatch):
    ros = MagicMock(Float64MultiArray=SimpleNamespace)
    names = "rclpy rclpy.executors rclpy.qos sensor_msgs sensor_msgs.msg std_msgs std_msgs.msg"
    for name in names.split():
        monkeypatch.setitem(sys.modules, name, ros)
    state = SimpleNamespace(
        name=["elbow", "gripper", "shoulder"], position=[2.0, 9.0, 1.0], velocity=[0.2, 0.9, 0.1]
    )
    node, executor = ros.create_node.return_value, ros.SingleThreadedExecutor.return_value
    node.create_subscription.side_effect = lambda kind, topic, arrived, qos: arrived(state)
    published = node.create_publisher.return_value.publish
    monkeypatch.syspath_prepend(str(TUTORIAL.parent))
    device = importlib.import_module("ros2_device").Ros2Device(["shoulder", "elbow"])
    with contextlib.closing(device):
        device.connect()
        device.connect()
        (sensor,) = device.sensors
        assert sensor.age_s < 10.0
        assert np.array(device.read()).tolist() == [[1.0, 2.0], [0.1, 0.2]]
        device.order(np.float32([0.5, -0.5]))
        device.close()
    assert [call.args[0].data for call in published.call_args_list] == [[0.5, -0.5], [0.0, 0.0]]
    context = ros.Context.return_value
    for once in (ros.init, executor.spin, executor.shutdown, node.destroy_node, context.shutdown):
        once.assert_called_once()
