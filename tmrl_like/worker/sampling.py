"""Turns the result of a step into a sample, with the user's compressor and, for CRC debugging, the
original.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from tmrl_like.errors import ConfigError, MemoryContractError
from tmrl_like.types import Observation, Sample, SampleCompressor, check_items

Made: TypeAlias = tuple[Any, ...]
"""(act, obs, rew, terminated, truncated, info) and, with CRC debugging, a seventh item: the
transition to which they belong.
"""


def sampler_of(
    compressor: SampleCompressor | None, crc_debug: bool
) -> Callable[[Made], Made] | None:
    """Return a function that makes the samples of one environment, in order, from their six items;
    None: the six items are the sample.

    Raises:
        MemoryContractError: the compressor does not take the six items of a sample.
    """
    if compressor is not None:
        _check_arguments(compressor)
    if compressor is None and not crc_debug:
        return None

    newest: Observation = None  # copies: environments may use their arrays again

    def sample_of(made: Made) -> Made:
        nonlocal newest
        if crc_debug:  # a compressor may change what it is given
            act, obs, rew, terminated, truncated = copy.deepcopy(made[:5])
        sample = made if compressor is None else compressor(*made)
        if type(sample) is not tuple or len(sample) != 6:
            check_items("sample_compressor returned", sample, Sample._fields)
            sample = tuple(sample)
        if crc_debug:
            sample = (*sample, (newest, act, rew, obs, terminated, truncated))
            newest = obs
        return sample

    return sample_of


def refuse_longer_buffer(compressor: SampleCompressor | None, held: int | None) -> None:
    """Raise ConfigError if a compressor drops more actions than the `held` ones at the end of
    observations.
    """
    dropped = getattr(compressor, "act_buf_len", 0)
    if held is not None and dropped > held:
        raise ConfigError(
            f"the compressor drops {dropped} actions of each observation, which ends in {held}: "
            "give the memory the environment's act_buf_len, or none"
        )


def _check_arguments(compressor: SampleCompressor) -> None:
    with contextlib.suppress(ValueError):  # built-ins without a signature
        takes: object = "nothing"  # it is not callable
        try:
            takes = signature = inspect.signature(compressor)
            signature.bind(*range(6))
        except TypeError:
            raise MemoryContractError(
                f"sample_compressor takes {takes}; expected (act, obs, rew, terminated, truncated, "
                "info), where two items replace `done`"
            ) from None
