"""Joints behind ROS 2 as the `Device` of the robot template: states from a topic, velocities to a
controller.

    tmrl-like init my_arm --kind robot     writes my_arm.py; use this as the `_driver` of MyArm
    source setup.bash of ROS 2             before anything that steps the environment

It expects `ros2_control` with a `joint_state_broadcaster`, and a controller that takes a
Float64MultiArray of velocities in rad/s, e.g. `velocity_controllers/JointGroupVelocityController`.
"""

import queue
import threading

import numpy as np

from tmrl_like.envs.sensor import Sensor


class Ros2Device:
    moves_hardware = True  # False for a simulation

    def __init__(self, joints, states="/joint_states", commands="/velocity_controller/commands"):
        """Store the names, without using ROS: a trainer makes one, too, to read the spaces."""
        self._joints, self._states, self._commands = list(joints), states, commands
        self._sensor = None
        self.sensors = ()  # the age of their values goes into the worker's metrics

    def connect(self):
        """Join the ROS graph and wait for the first state, for at most ten seconds.

        Called at each reset; does nothing if already connected.
        """
        if self._sensor is not None:
            return
        import rclpy
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.qos import qos_profile_sensor_data
        from sensor_msgs.msg import JointState
        from std_msgs.msg import Float64MultiArray

        self._message, arrived = Float64MultiArray, queue.SimpleQueue()
        # a separate context, which does not affect signal handlers or other nodes of the process
        self._context = rclpy.Context()
        rclpy.init(context=self._context)
        self._node = rclpy.create_node("tmrl_like", context=self._context)
        self._publisher = self._node.create_publisher(Float64MultiArray, self._commands, 1)
        self._node.create_subscription(
            JointState, self._states, arrived.put, qos_profile_sensor_data
        )
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        threading.Thread(target=self._executor.spin, name="ros2", daemon=True).start()
        try:
            self._sensor = Sensor(f"the topic {self._states}", arrived.get, silent_after_s=0.5)
        except Exception:
            self._leave()
            raise
        self.sensors = (self._sensor,)

    def read(self):
        """Return angles in rad and speeds in rad/s of the newest state, float [JOINTS] each,
        without waiting.

        A topic that has been silent for half a second is a fault of the environment.
        """
        state = self._sensor.newest()
        # the broadcaster may list joints in any order
        place = {name: k for k, name in enumerate(state.name)}
        missing = [joint for joint in self._joints if joint not in place]
        if missing:
            raise RuntimeError(
                f"{self._states} has the joints {', '.join(state.name)}, and no "
                f"{', '.join(missing)}"
            )
        at = [place[joint] for joint in self._joints]
        return np.array(state.position)[at], np.array(state.velocity)[at]

    def order(self, speed):
        """Command these joint speeds, rad/s [JOINTS], without waiting for the effect."""
        self._publisher.publish(self._message(data=[float(value) for value in speed]))

    def close(self):
        """Stop the joints and leave the graph. Calling it twice is fine."""
        sensor, self._sensor, self.sensors = self._sensor, None, ()
        if sensor is not None:
            self.order(np.zeros(len(self._joints)))
            sensor.close()
            self._leave()

    def _leave(self):
        self._executor.shutdown()
        self._node.destroy_node()
        self._context.shutdown()
