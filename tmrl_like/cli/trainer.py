"""`tmrl-like trainer`."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil

from tmrl_like.agents.process import tune_process
from tmrl_like.base.files import write_atomically
from tmrl_like.cli.arguments import Arguments, how_to_test
from tmrl_like.cli.finished import refuse_finished
from tmrl_like.cli.reload import Reloading
from tmrl_like.cli.stopping import CHECKPOINT_WITHIN_S, Stopper
from tmrl_like.cli.worker import prepare
from tmrl_like.config.document import find_experiment
from tmrl_like.config.loading import as_yaml, load_settings, open_experiment
from tmrl_like.config.settings import PARTS
from tmrl_like.experiment import Experiment
from tmrl_like.metrics.sinks import ConsoleSink, Sink, TensorBoardSink
from tmrl_like.trainer.offline import OFFLINE
from tmrl_like.trainer.trainer import Trainer

_PARTS = ("actor", "agent", "memory", "obs_preprocessor", "agent_scheduler")


def main(arguments: Arguments) -> int:
    """Train until the epochs or the minutes are over."""
    document = open_experiment(arguments.experiment, arguments.overrides)
    parts = (*_PARTS, "spaces" if document.data.get("spaces") else "env")
    more: dict[str, Any] = {"connect": OFFLINE} if arguments.offline else {}
    return train(arguments, parts, functools.partial(Experiment.make_trainer, **more))


def train(
    arguments: Arguments,
    parts: tuple[str, ...],
    make: Callable[..., AbstractContextManager[Trainer]],
) -> int:
    """Run the trainer that `make` makes of the experiment with these parts, and with what `make_trainer` takes."""
    stopper = Stopper(arguments.supervised, CHECKPOINT_WITHIN_S)
    reloading = Reloading(arguments.experiment, arguments.overrides)  # first: what is read later is no older
    if "RANK" not in os.environ:  # else all ranks come together first
        refuse_finished(load_settings(arguments.experiment, arguments.overrides))
    experiment = prepare(arguments, "trainer", parts)
    tune_process()
    about: dict[str, str] = {}
    section, paths, data = experiment.trainer, experiment.paths, experiment.as_data()
    is_first = os.environ.get("RANK", "0") == "0"
    sinks: list[Sink] = [] if arguments.supervised else [ConsoleSink()]
    if section.tensorboard and is_first:
        named = dict(_hyper_parameters({name: data[name] for name in (*PARTS, "trainer", "seed")}))
        sinks.append(TensorBoardSink(paths.folder / "tensorboard", named))
    with (
        make(experiment, supervised=arguments.supervised, sinks=sinks) as trainer,
        contextlib.ExitStack() as further,
    ):
        stopper.on_stop = trainer.stop
        trainer.training.refuse_finished(trainer.training.epoch, trainer.training.elapsed_s)
        if is_first:
            text = as_yaml(data)
            reloading.tuning, reloading.kept = trainer.training.tuning, paths.folder / "experiment.yaml"
            write_atomically(reloading.kept, text.encode())
            about = {
                "command": shlex.join(
                    psutil.Process(os.getppid()).cmdline() if arguments.supervised else sys.orig_argv
                ),
                "env": "",
                "experiment": text,
                "experiment_file": str(Path(find_experiment(arguments.experiment)).resolve()),
            }
            further.enter_context(reloading)
        if arguments.supervised:
            print("ready", flush=True)
        if not (section.wandb and is_first):
            trainer.run(about)
        else:
            trainer.run_with_wandb(
                entity=section.wandb_entity,
                project=section.wandb_project,
                run_id=section.wandb_run_id or experiment.run_name,
                key=os.environ.get("WANDB_API_KEY"),
                about=about,
            )
    if is_first and not arguments.supervised:
        print(f"everything of this run is in {paths.folder}; try: {how_to_test(arguments)}", flush=True)
    is_restarted = "TORCHELASTIC_RUN_ID" in os.environ  # by torchrun, if it ends with anything but 0
    return 0 if is_restarted else stopper.exit_code


def _hyper_parameters(data: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers, bools and texts of an experiment by key (`agent.lr_actor`), lists as text; a class by its part's key."""
    if isinstance(data, dict):
        for key, value in data.items():
            below = name if key in ("class_path", "init_args") else f"{name}.{key}".lstrip(".")
            yield from _hyper_parameters(value, below)
    elif data is not None:
        yield name, str(data) if isinstance(data, list) else data
