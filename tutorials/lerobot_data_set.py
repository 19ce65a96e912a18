"""Convert a data set of LeRobot (layouts 2 and 3) to one that a memory begins with; needs `pip
install pyarrow`.

python tutorials/lerobot_data_set.py LEROBOT_FOLDER FOLDER
tmrl-like trainer my_arm.yaml --offline --memory.dataset_path FOLDER
"""

import itertools
import sys
from pathlib import Path

import numpy as np
from pyarrow import parquet

from tmrl_like.replay.data_sets import write_data_set
from tmrl_like.types import Buffer, Info


def samples(frames):
    """Yield the samples of an episode's frames, beginning with the reset."""
    obs = [np.float32(frame["observation.state"]) for frame in frames]
    act = [np.float32(frame["action"]) for frame in frames]
    terminates = bool(frames[-1].get("next.done"))
    # the data lacks the observation after the last action: repeat the one before if that action
    # ended in a terminal state, which has no value; else drop the action
    obs += obs[-1:] * terminates
    yield np.zeros_like(act[0]), obs[0], 0.0, False, False, Info(is_reset=True)
    for k in range(len(obs) - 1):
        is_last, rew = k == len(obs) - 2, float(frames[k].get("next.reward", 0.0))
        yield act[k], obs[k + 1], rew, is_last and terminates, is_last and not terminates, {}


files = sorted(Path(sys.argv[1]).glob("data/*/*.parquet"))
frames = (frame for file in files for frame in parquet.read_table(file).to_pylist())
episodes = (
    list(group) for _, group in itertools.groupby(frames, key=lambda frame: frame["episode_index"])
)
print(
    write_data_set(
        sys.argv[2], (Buffer(list(samples(episode)), "lerobot") for episode in episodes)
    ),
    "samples",
)
