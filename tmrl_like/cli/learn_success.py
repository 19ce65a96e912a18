"""`tmrl-like success-model`: learns from labelled episodes what success looks like."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy  # noqa: F401 -- before torch, which swallows a Ctrl-C while it loads numpy

from tmrl_like.agents.process import tune_process
from tmrl_like.agents.success_training import JudgedEpisode, errors_of, split, train_success
from tmrl_like.cli.arguments import Arguments, to_type
from tmrl_like.errors import ConfigError
from tmrl_like.policies.success_model import write_success_model
from tmrl_like.policies.weights import copied
from tmrl_like.replay.data_sets import read_data_set
from tmrl_like.replay.labels import labels_beside, pictured_episodes, read_labels

_THRESHOLDS = (0.5, 0.9, 0.99)  # 0.5 is the default of a SuccessEnv


def main(arguments: Arguments) -> int:
    """Learn, judge the held-out episodes, and write the model."""
    file, data = arguments.out, Path(arguments.data)
    episodes = pictured_episodes(read_data_set(data))
    labels = labels_beside(data)
    if not labels.exists():
        raise ConfigError(
            f"{data} has no labels yet: `{to_type('tmrl-like', 'label', data)}` asks for them"
        )
    judged = [
        JudgedEpisode(episodes[number].pictures, success)
        for number, success in read_labels(labels, len(episodes)).items()
    ]
    learnt, held_out = split(judged, arguments.held_out)
    tune_process()
    network = train_success(learnt, arguments.steps, arguments.last)
    print(f"of {len(held_out)} episodes that were held out, {arguments.frames} frames in a row:")
    print("threshold   right  false positives  false negatives")
    notes = []
    for threshold in _THRESHOLDS:
        errors = errors_of(network, held_out, threshold, arguments.frames, arguments.last)
        positives, negatives = errors.false_positives, errors.false_negatives
        print(f"{threshold:9g}  {errors.accuracy:6.1%}  {positives:15}  {negatives:15}")
        notes.append(
            f"{errors.accuracy:.1%} right at {threshold:g} ({positives} false positives, "
            f"{negatives} negatives)"
        )
    judged_by = f"{len(held_out)} held-out episodes, {arguments.frames} frames in a row"
    spec = msgspec.structs.replace(
        network.spec, path=episodes[0].path, note=f"{judged_by}: {', '.join(notes)}"
    )
    write_success_model(file, spec, copied(network.state_dict()).content)
    print(f"{file}: from {len(learnt)} episodes; reward with it: tmrl_like.envs.SuccessEnv")
    return 0
