"""Memories that ship, and what memories are built from.

`ReplayMemory` (memory) keeps samples as columns; `compressor_of` gives the compressor that belongs to it:
`DropHistory` (layout) or, for action buffers alone, `DropActionBuffer` (action_buffer). Each name is loaded from
its module when first used, so that a worker that only wants the compressor imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tmrl_like.replay.action_buffer import DropActionBuffer as DropActionBuffer
    from tmrl_like.replay.crc import check_transition as check_transition
    from tmrl_like.replay.demonstrations import WithDemonstrations as WithDemonstrations
    from tmrl_like.replay.layout import DropHistory as DropHistory
    from tmrl_like.replay.layout import compressor_of as compressor_of
    from tmrl_like.replay.memory import ReplayMemory as ReplayMemory
    from tmrl_like.replay.priorities import Prioritised as Prioritised

_HOME_OF = {
    "DropActionBuffer": "action_buffer",
    "DropHistory": "layout",
    "Prioritised": "priorities",
    "ReplayMemory": "memory",
    "WithDemonstrations": "demonstrations",
    "check_transition": "crc",
    "compressor_of": "layout",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tmrl_like.replay' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tmrl_like.replay.{_HOME_OF[name]}"), name)
