"""The included memories, and the parts that memories are built from.

Each name is loaded from its module on first use, so that a worker that needs only the compressor
does not import torch.
"""

from typing import TYPE_CHECKING

from tmrl_like.base.lazy import names_from

if TYPE_CHECKING:
    from tmrl_like.replay.compressor import DropHistory as DropHistory
    from tmrl_like.replay.compressor import compressor_of as compressor_of
    from tmrl_like.replay.crc import check_transition as check_transition
    from tmrl_like.replay.demonstrations import WithDemonstrations as WithDemonstrations
    from tmrl_like.replay.memory import ReplayMemory as ReplayMemory
    from tmrl_like.replay.replay_options import ReplayOptions as ReplayOptions

_HOME_OF = {
    "DropHistory": "tmrl_like.replay.compressor",
    "ReplayMemory": "tmrl_like.replay.memory",
    "ReplayOptions": "tmrl_like.replay.replay_options",
    "WithDemonstrations": "tmrl_like.replay.demonstrations",
    "check_transition": "tmrl_like.replay.crc",
    "compressor_of": "tmrl_like.replay.compressor",
}

__all__ = sorted(_HOME_OF)
__getattr__ = names_from(__name__, _HOME_OF)
