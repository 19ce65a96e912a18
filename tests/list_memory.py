"""A memory such as a user might write: lists, and index arithmetic over earlier samples."""

from tmrl_like.replay.contract import MemoryDataloading


class ListMemory(MemoryDataloading):
    """A memory that ignores resets, workers and streams."""

    act_buf_len = 4

    def __len__(self):
        # a transition's older observation needs act_buf_len actions before it
        return max(0, len(self.data[0]) - max(1, self.act_buf_len)) if self.data else 0

    def append_buffer(self, buffer):
        columns = [list(column) for column in zip(*buffer.memory, strict=True)]
        if not self.data:
            self.data = [[] for _ in columns]
        for stored, new in zip(self.data, columns, strict=True):
            stored += new
            del stored[: max(0, len(stored) - self.memory_size)]

    def get_transition(self, item):
        acts, observations, rewards, terminated, truncated, infos = self.data
        now = item + max(1, self.act_buf_len)
        last_obs = (*observations[now - 1], *acts[now - self.act_buf_len : now])
        obs = (*observations[now], *acts[now + 1 - self.act_buf_len : now + 1])
        return last_obs, acts[now], rewards[now], obs, terminated[now], truncated[now], infos[now]
