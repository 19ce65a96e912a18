"""Memories that ship, and what memories are built from.

`ReplayMemory` (replay) keeps samples as columns; `compressor_of` gives the compressor that belongs to it:
`DropHistory` (layout) or, for action buffers alone, `DropActionBuffer` (action_buffer). Each name is loaded from
its module when first used, so that a worker that only wants the compressor imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tmrl_like.memories.action_buffer import DropActionBuffer as DropActionBuffer
    from tmrl_like.memories.crc import check_transition as check_transition
    from tmrl_like.memories.demonstrations import WithDemonstrations as WithDemonstrations
    from tmrl_like.memories.layout import DropHistory as DropHistory
    from tmrl_like.memories.layout import compressor_of as compressor_of
    from tmrl_like.memories.priorities import Prioritised as Prioritised
    from tmrl_like.memories.replay import ReplayMemory as ReplayMemory

_HOME_OF = {
    "DropActionBuffer": "action_buffer",
    "DropHistory": "layout",
    "Prioritised": "priorities",
    "ReplayMemory": "replay",
    "WithDemonstrations": "demonstrations",
    "check_transition": "crc",
    "compressor_of": "layout",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tmrl_like.memories' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tmrl_like.memories.{_HOME_OF[name]}"), name)
