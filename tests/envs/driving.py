"""Drives an environment to the end of an episode."""


def drive_to_end(env, action):
    """Repeat an action until the episode terminates; return the rewards, the last observation and
    its info.
    """
    rewards, terminated = [], False
    while not terminated:
        obs, reward, terminated, truncated, info = env.step(action)
        rewards.append(float(reward))
        assert not truncated
    return rewards, obs, info
