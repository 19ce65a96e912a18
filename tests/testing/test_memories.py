"""The memory contract, checked on the memory that ships and on one such as users write."""

from __future__ import annotations

from list_memory import ListMemory

from tmrl_like.replay import ReplayMemory
from tmrl_like.testing.memories import MemoryContract


class ReplayContract(MemoryContract):
    def make_memory(self, **kwargs):
        return ReplayMemory(
            act_buf_len=self.act_buf_len,
            frame_stack={1: self.frame_stack} if self.frame_stack else 0,
            **kwargs,
        )


class ListContract(MemoryContract):
    def make_memory(self, **kwargs):
        memory = ListMemory(**kwargs)
        memory.act_buf_len = self.act_buf_len
        return memory


class TestReplayMemoryWhereResetsFillTheActionBuffer(ReplayContract):
    pass


class TestReplayMemoryWithAPaddedStackAndACarriedOverActionBuffer(ReplayContract):
    reset_act_buf = False
    act_buf_len = 2
    frame_stack = 6


class TestListMemoryWhereResetsFillTheActionBuffer(ListContract):
    pass


class TestListMemoryWhereTheActionBufferIsCarriedOver(ListContract):
    reset_act_buf = False


class TestListMemoryWhereTheLastActionStays(ListContract):
    reset_act_buf = False
    last_act_on_reset = True
