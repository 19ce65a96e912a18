"""Batches and arriving packets for tests of replay memories."""

from dataclasses import replace

import numpy as np

from tmrl_like.base import tree
from tmrl_like.replay import DropHistory, check_transition
from tmrl_like.testing.memories import ActionBufferEnv, cut, interleaved, packed
from tmrl_like.types import Buffer

COMPRESS = DropHistory(4)


def identity_of(obs):
    """Return (worker, step) of an observation of an `ActionBufferEnv`."""
    return tuple(obs[0].tolist())


def gather(memory, items):
    """Return the batch of these items."""
    size, memory.batch_size = memory.batch_size, len(items)
    memory.sample_indices = lambda: np.asarray(items)
    memory.seed(0)
    batch = memory.sample()
    del memory.sample_indices
    memory.batch_size = size
    return batch


def arriving(workers, sizes, seed, count=100, first=0, **env):
    """Return (worker, steps) of the packets of several workers, interleaved at random. Each worker
    makes `count` steps, of which those from `first` on are sent.
    """
    streams = [
        list(cut(ActionBufferEnv(worker, **env).take(count)[first:], sizes))
        for worker in range(workers)
    ]
    return interleaved(streams, seed=seed)


def driven_by(by_whom, steps, compress=COMPRESS, stream="w", size=100):
    """Yield a stream of steps in packets of this size; `by_whom`: the first and the end of the
    steps in which a driver took over.
    """
    sources = np.zeros(len(steps), np.uint8)
    for source, (first, end) in by_whom.items():
        sources[first:end] = source
    for start in range(0, len(steps), size):
        piece = slice(start, start + size)
        (block,) = packed(steps[piece], stream, compress).blocks
        timing = block.timing._replace(source=sources[piece])
        yield Buffer(stream=stream, blocks=[replace(block, timing=timing)])


def steps_of_return(steps, row, most, greedy_only=True):
    """Return the up to `most` steps of a stream that make up the return that begins in a row."""
    taken = [steps[row]]
    for after in steps[row + 1 : row + most]:
        last = taken[-1].sample
        explores = greedy_only and not after.is_reset and not after.sample.info["greedy"]
        if after.is_reset or last.terminated or last.truncated or explores:
            break
        taken.append(after)
    return taken


def assert_a_batch_is_what_the_items_are(memory):
    """Compare bit by bit; return the batch of all items, or None for an empty memory."""
    if not len(memory):
        return None
    batch = gather(memory, range(len(memory)))
    for k in range(len(memory)):
        last_obs, act, rew, obs, *flags, _ = memory.get_transition(k)
        expected = tree.map_leaves(
            np.asarray, (last_obs, act, np.float32(rew), obs, *map(np.float32, flags))
        )
        check_transition(expected, tree.map_leaves(lambda leaf, k=k: leaf[k].numpy(), tuple(batch)))
    return batch
