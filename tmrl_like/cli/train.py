"""`tmrl-like trainer`, and `tmrl-like run --in-process`, which also runs the environments in the
same process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import sys
from typing import Any

import numpy  # noqa: F401 -- before torch, which swallows a Ctrl-C while it loads numpy
import psutil

from tmrl_like.agents.pretraining import encoder_of, save_encoder, train_encoder
from tmrl_like.base.files import write_atomically, writing
from tmrl_like.cli.arguments import Arguments, how_to_test, to_type
from tmrl_like.cli.best import hooks_of
from tmrl_like.cli.changes import changes_since
from tmrl_like.cli.prepare import TO_COLLECT, TO_LEARN, parts_to_train, prepare
from tmrl_like.cli.reload import Reloading
from tmrl_like.cli.stopping import CHECKPOINT_WITHIN_S, Stopper
from tmrl_like.config.loading import as_yaml
from tmrl_like.errors import ConfigError
from tmrl_like.experiment import Experiment
from tmrl_like.metrics.sinks import ConsoleSink, Sink, TensorBoardSink
from tmrl_like.trainer.connecting import OFFLINE, expect_no_worker
from tmrl_like.trainer.trainer import Trainer

log = logging.getLogger("tmrl_like.trainer")

ENCODER_STEPS = 2000
_IN_PROCESS = (*TO_LEARN, *TO_COLLECT, "takeover", "on_worker_rollout")


def main(arguments: Arguments) -> int:
    """Train until the epochs or the minutes are over."""
    if arguments.command == "trainer" and arguments.encoder is not None:
        return _train_encoder(arguments)
    stopper = Stopper(arguments.supervised, CHECKPOINT_WITHIN_S)
    in_process = arguments.command == "run"
    if "RANK" not in os.environ:  # with several ranks, all of them must meet before any may refuse
        arguments.experiment.refuse_finished()
    parts = _IN_PROCESS if in_process else parts_to_train(arguments)
    experiment = prepare(arguments, parts, trains=True)
    how: dict[str, Any] = {
        "supervised": bool(arguments.supervised),
        "sinks": _sinks(experiment),
    }
    if in_process:
        made = experiment.make_in_process({"on_rollout": hooks_of(experiment)}, **how)
    else:
        made = experiment.make_trainer(**how | ({"connect": OFFLINE} if arguments.offline else {}))
    with made as trainer, contextlib.ExitStack() as further:
        stopper.on_stop = trainer.stop
        training, about = trainer.training, dict[str, str]()
        training.refuse_finished(training.epoch, training.elapsed_s)
        if _is_first():
            _say_what_changed(arguments, experiment)
            about = _write_down(arguments, experiment)
            further.enter_context(
                Reloading(experiment.document, arguments.overrides, training.tuning)
            )
        if arguments.supervised:
            print("\nready")  # the user's code may have left a line open
        _run(trainer, experiment, about)
    if _is_first() and not arguments.supervised:
        print(
            f"everything of this run is in {experiment.paths.folder}; try: "
            f"{how_to_test(arguments)}",
        )
    # torchrun restarts a trainer that ends with anything but 0
    is_restarted = "TORCHELASTIC_RUN_ID" in os.environ
    return 0 if is_restarted else stopper.exit_code


def _is_first() -> bool:
    """Whether this is the only trainer, or the one of several that reports."""
    return os.environ.get("RANK", "0") == "0"


def _sinks(experiment: Experiment) -> list[Sink]:
    """Return the sinks for metrics besides the run's folder."""
    sinks: list[Sink] = [ConsoleSink()]
    if experiment.trainer.tensorboard and _is_first():
        sinks.append(TensorBoardSink(experiment.paths.folder / "tensorboard"))
    return sinks


def _say_what_changed(arguments: Arguments, experiment: Experiment) -> None:
    """Log what differs from the experiment with which a resumed run was started last."""
    if experiment.trainer.resume == "none":
        return
    with contextlib.suppress(ConfigError):  # it has no earlier start
        if changes := changes_since(arguments):
            log.info("the run goes on, with its earlier samples%s", changes)


def _write_down(arguments: Arguments, experiment: Experiment) -> dict[str, str]:
    """Save the whole experiment in the run's folder; return the fields of run.json for this
    start.
    """
    write_atomically(
        experiment.paths.folder / "experiment.yaml", as_yaml(experiment.as_data()).encode()
    )
    started = sys.orig_argv
    if arguments.supervised:
        with contextlib.suppress(psutil.Error):  # that run has just ended, so this one does
            started = psutil.Process(arguments.supervised).cmdline()
    file, kept = str(experiment.document.path), as_yaml(experiment.as_data(shows_told=False))
    return {"command": to_type(*started), "experiment": kept, "experiment_file": file}


def _train_encoder(arguments: Arguments) -> int:
    """Train the encoder of pictures as half of an autoencoder, and write it to a file."""
    file = arguments.encoder
    experiment = prepare(arguments, parts_to_train(arguments), trains=True)
    training = experiment.training()
    encoder = encoder_of(training.agent)
    expect_no_worker(training)
    pictures = (training.memory.sample().obs for _ in range(ENCODER_STEPS))
    missing = [*train_encoder(encoder, pictures)]
    with writing("the encoder", file):
        save_encoder(encoder, file)
    kept = 1.0 - statistics.fmean(missing[-ENCODER_STEPS // 20 :])
    print(
        f"{file}: from {training.total_samples:,} samples; it keeps {kept:.0%} of what differs "
        "between pictures"
    )
    print(f"start a run with it: {to_type('--agent.picture_encoder', file)}")
    return 0


def _run(trainer: Trainer, experiment: Experiment, about: dict[str, str]) -> None:
    section = experiment.trainer
    if not (section.wandb and _is_first()):
        trainer.run(about)
        return
    trainer.run_with_wandb(
        entity=section.wandb_entity,
        project=section.wandb_project,
        run_id=section.wandb_run_id or experiment.run_name,
        key=os.environ.get("WANDB_API_KEY"),
        about=about,
    )
