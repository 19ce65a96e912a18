"""A memory as a user of the library writes it: lists, and index arithmetic over earlier samples."""

from __future__ import annotations

from tmrl_like.memory_dataloading import MemoryDataloading


class ListMemory(MemoryDataloading):
    """Knows nothing of resets, workers or contexts, except for what the action buffer needs."""

    act_buf_len = 4
    reset_act_buf = True
    last_act_on_reset = False

    def __len__(self):
        # the older observation needs act_buf_len actions; up to that many of them may have been replaced at a reset
        return max(0, len(self.data[0]) - self.first - 1) if self.data else 0

    @property
    def first(self):
        return self.act_buf_len if self.reset_act_buf else 2 * self.act_buf_len

    def append_buffer(self, buffer):
        columns = [list(column) for column in zip(*buffer.memory, strict=True)]
        columns.append([sample.info.is_reset for sample in buffer.memory])
        if not self.data:
            self.data = [[] for _ in columns]
        for stored, new in zip(self.data, columns, strict=True):
            stored += new
            del stored[: max(0, len(stored) - self.memory_size)]

    def get_transition(self, item):
        acts, observations, rewards, terminated, truncated, infos, _ = self.data
        now = item + self.first + 1
        last_obs = (*observations[now - 1], *self.action_buffer(now - 1))
        obs = (*observations[now], *self.action_buffer(now))
        return last_obs, acts[now], rewards[now], obs, terminated[now], truncated[now], infos[now]

    def action_buffer(self, now):
        acts, is_reset = self.data[0], self.data[6]
        buffer = []
        while len(buffer) < self.act_buf_len:
            if not is_reset[now]:
                buffer.append(acts[now])
                now -= 1
            elif self.reset_act_buf:
                buffer.append(acts[now])  # and again: the reset has filled the buffer
            elif self.last_act_on_reset:
                now -= 1
            else:
                buffer.append(acts[now])
                now = self.before_replaced(now)
        return buffer[::-1]

    def before_replaced(self, now):
        """The action before a reset was never applied: the default action has taken its place."""
        now -= 1
        return now - 1 if not self.data[6][now] else self.before_replaced(now)
