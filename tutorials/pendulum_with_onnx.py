"""Drive Gymnasium's pendulum with a policy of tmrl_like, but without the package: with numpy,
gymnasium and onnxruntime.

tmrl-like run config/pendulum.yaml --trainer.max_minutes 3
tmrl-like policies export pendulum@best pendulum.onnx --onnx
python tutorials/pendulum_with_onnx.py pendulum.onnx
"""

import sys

import gymnasium
import numpy as np
import onnxruntime

policy = onnxruntime.InferenceSession(sys.argv[1])
env = gymnasium.make("Pendulum-v1")
obs, _ = env.reset(seed=0)
total, ended = 0.0, False
while not ended:
    (action,) = policy.run(["action"], {"observation": np.float32([obs])})
    obs, reward, terminated, truncated, _ = env.step(action[0])
    total, ended = total + float(reward), terminated or truncated
print(f"return {total:.3f}")
