"""`tmrl-like clone`: trains a policy that imitates a data set, from which a training can start."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy  # noqa: F401 -- before torch, which swallows a Ctrl-C while it loads numpy
import torch

from tmrl_like.agents.cloning import Shown, clone
from tmrl_like.base.factories import known_from_env
from tmrl_like.base.files import writing
from tmrl_like.base.text import counted
from tmrl_like.cli.arguments import Arguments, how_to_test, to_type
from tmrl_like.cli.prepare import parts_to_train, prepare
from tmrl_like.errors import CheckpointError, MemoryContractError
from tmrl_like.policies.policy_file import describe, write_policy
from tmrl_like.replay.collate import stack
from tmrl_like.replay.compressor import compressor_of
from tmrl_like.replay.data_sets import read_data_set
from tmrl_like.replay.sample_check import SampleCheck
from tmrl_like.replay.shown import shown_steps
from tmrl_like.trainer.schedule import TrainingOffline


def main(arguments: Arguments) -> int:
    """Learn from the data set, and write the policy."""
    file = arguments.out
    experiment = prepare(arguments, parts_to_train(arguments), trains=True)
    training = experiment.training()
    actor = experiment.actor(training.observation_space, training.action_space).to_device(
        training.device
    )
    learnt, held_out = _shown(arguments.data, training).split(arguments.held_out)
    untrained, trained = clone(actor, learnt, held_out, arguments.steps)
    card = describe(actor, training.memory.obs_preprocessor, experiment.run_name)
    # the number of steps becomes the weight of its running statistics
    card = msgspec.structs.replace(card, training_steps=arguments.steps)
    with writing("the policy", file):
        write_policy(file, actor.weights(), card)
    print(f"{file}: from {_size(learnt)}; {_size(held_out)} were held out")
    print("log-likelihood of a step, in nats: before and after training")
    print(f"  learnt    {untrained.learnt:8.2f} {trained.learnt:8.2f}")
    print(f"  held out  {untrained.held_out:8.2f} {trained.held_out:8.2f}")
    print(f"look at it: {how_to_test(arguments, '--policy', file)}")
    print(f"start a run with it: {to_type('--trainer.init_policy', file)}")
    return 0


def _size(shown: Shown) -> str:
    return f"{counted(len(shown.act), 'step')} of {counted(len(shown.episodes), 'episode')}"


def _shown(data: Path, training: TrainingOffline) -> Shown:
    spaces = training.observation_space, training.action_space
    check = SampleCheck(*spaces, training.memory)
    try:
        buffers = check.passing(read_data_set(data))
        steps = shown_steps(buffers, training.memory_cls, *spaces)
    except MemoryContractError as error:
        raise CheckpointError(
            f"the data set {data} does not fit this {type(training.memory).__name__}: {error}"
        ) from None
    observations, actions, episodes, raw_parts = zip(*steps, strict=True)
    device = str(training.device)
    # the memory's own, and the environment's if samples are sent whole
    of_memory = getattr(compressor_of(training.memory_cls), "act_buf_len", 0)
    held = max(of_memory, known_from_env(training.env_cls).get("act_buf_len", 0))
    parts = (
        stack(observations, device),
        stack(actions, device),
        torch.tensor(episodes, device=device),
    )
    return Shown(*parts, past_actions=min(held, *raw_parts))
