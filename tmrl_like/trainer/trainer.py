"""The trainer: runs `TrainingOffline`, saves its state to disk, and reports its metrics."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Unpack

import torch

import tmrl_like.config.config_constants as cfg
from tmrl_like.base.factories import argument_of, taken_apart
from tmrl_like.base.options import with_given
from tmrl_like.base.processes import cores_to_train_with
from tmrl_like.base.script import close_at_exit
from tmrl_like.base.text import name_of, one_line
from tmrl_like.config.paths import RunPath, RunPaths
from tmrl_like.config.run_lock import use_run
from tmrl_like.engine.options import EngineOptions
from tmrl_like.errors import ConfigError, FinishedError, PolicyError, ShortageError
from tmrl_like.metrics.reading import Record
from tmrl_like.metrics.sinks import ConsoleSink, JsonLinesSink, Sink, WandbSink
from tmrl_like.metrics.starts import Start, StartFields, describe_start, read_starts, write_starts
from tmrl_like.policies.policy_file import describe, read_policy
from tmrl_like.policies.policy_store import PolicyStore, find_policy
from tmrl_like.replay.sample_check import SampleCheck
from tmrl_like.trainer.checkpoints import Checkpoints, Dump, Load, Make, Updater
from tmrl_like.trainer.connecting import Connect, LinkParts, how_to_connect
from tmrl_like.trainer.interface import TrainerInterface
from tmrl_like.trainer.options import TrainerOptions
from tmrl_like.trainer.ranks import meet
from tmrl_like.trainer.saver import Saver
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.watch import Listener
from tmrl_like.transport.dial import Dial

log = logging.getLogger("tmrl_like.trainer")

_LOOK_S = 0.25  # a wait without a limit cannot be interrupted by Ctrl-C on Windows
_MAX_CAUSE = 100
# as torch words it; on Windows "not enough memory"
_OUT_OF_MEMORY = re.compile("can't allocate memory|not enough memory|out of memory")


@dataclass(eq=False)
class _Records(Listener):
    """Passes each record to the sinks and the link, and returns of test episodes to the saver."""

    sinks: Sequence[Sink]
    saver: Saver | None
    link: TrainerInterface

    def on_record(self, record: Record) -> None:
        is_test = record["kind"] == "episode" and record["test"] and not record["fault"]
        if is_test and self.saver is not None:
            self.saver.add_return(record["policy_version"], record["return"])
        for sink in self.sinks:
            sink.write(record)
        self.link.report(record)


class Trainer:
    """Trains from the samples that workers send.

    If torchrun started several processes, the trainers in them learn as one (`RankOptions`): each
    averages its gradients with the others', and rank 0 publishes, logs and saves.

    The constructor builds the training (or loads its checkpoint) and connects, without waiting for
    the server. `run` blocks until the epochs are done. Use it as a context manager, or call
    `close`; a trainer that is still open when the script ends is closed then.

    Attributes:
        training: the training that it runs.
        link: its connection.
        ranks: the trainers that learn as one.
    """

    def __init__(
        self,
        training_cls: Make,
        server_ip: str | None = None,
        model_path: str | Path | RunPath | None = RunPath.OF_RUN,
        checkpoint_path: str | Path | RunPath | None = RunPath.OF_RUN,
        dump_run_instance_fn: Dump | None = None,
        load_run_instance_fn: Load | None = None,
        updater_fn: Updater | None = None,
        *,
        metrics_path: str | Path | None = None,
        policies_path: str | Path | RunPath | None = RunPath.OF_RUN,
        sinks: Sequence[Sink] | None = None,
        options: TrainerOptions | None = None,
        connect: Connect | EngineOptions | None = None,
        **dial: Unpack[Dial],
    ) -> None:
        """Build the training and connect.

        Args:
            training_cls: makes the training, e.g. `partial(TrainingOffline, memory_cls=…, …)`.
            server_ip: the server's address; None: `cfg.SERVER_IP_FOR_TRAINER`, which is this
                machine unless set.
            model_path: file for the newest published weights; left out: the run's file
                (`cfg.MODEL_PATH_TRAINER`); None: they are not written.
            checkpoint_path: folder of the checkpoint, which is written after each epoch while
                training goes on, and of the samples, which are stored as they arrive. Both are read
                at the start if they exist. Left out: the run's folder (`cfg.CHECKPOINT_PATH`);
                None: nothing is kept.
            dump_run_instance_fn: f(training, checkpoint_path), replaces our own format.
            load_run_instance_fn: f(checkpoint_path) -> training, reads what `dump_run_instance_fn`
                wrote. It must also restore `training.kept`, which says which samples the memory
                holds.
            updater_fn: f(training loaded from a checkpoint, training_cls) -> training, e.g. to
                change hyper-parameters that the checkpoint restored (an optimiser's learning rate).
            metrics_path: file for metrics as JSON lines, with run.json beside it; None: in the
                run's folder (`cfg.RUN_FOLDER`), which this trainer then owns until it is closed.
            policies_path: folder of the policy store; left out: the run's (`cfg.POLICIES_FOLDER`);
                None: no store.
            sinks: further places for metrics; None: the console.
            options: how to run the training.
            connect: None: through the server. `EngineOptions`: samples come from an engine, and
                policies go to it. `OFFLINE`: train without server and workers from what the memory
                holds: a data set, or what an earlier process of this run has kept. Or a callable
                that makes a `TrainerInterface` of your own.
            **dial: how to reach the server, see `Dial`.

        Raises:
            CheckpointError: the checkpoint is damaged or belongs to another training.
            CredentialsError: this machine's key cannot be read.
            ConfigError: an argument is wrong, there is nothing to train from offline, or another
                process uses the run.
            MissingExtraError: an engine is given, but its client is not installed.
            ShortageError: the system cannot start a thread.
        """
        self._training_cls = training_cls
        self._options = options = with_given(TrainerOptions, options)
        connect = how_to_connect(connect, server_ip, **dial)
        self._metrics_path = Path(metrics_path or cfg.RUN_FOLDER / "metrics.jsonl")
        self._sinks = sinks
        self._stop = threading.Event()
        self._running = threading.RLock()
        self._closed = False
        self.ranks = ranks = meet(options.distributed)
        with contextlib.ExitStack() as parts:  # closed in reverse order
            parts.callback(ranks.leave)
            if metrics_path is None:
                own = RunPaths(cfg.RUN_NAME, cfg.DATA_FOLDER)
                parts.enter_context(use_run(own, "rank" if ranks.rank else "trainer"))
            path = cfg.path_of_run(checkpoint_path, "CHECKPOINT_PATH")
            self._checkpoints = Checkpoints(
                path,
                dump_run_instance_fn,
                load_run_instance_fn,
                ranks,
                options.sync_every_s,
                check_of=lambda to: SampleCheck(to.observation_space, to.action_space, to.memory),
                interval_s=options.checkpoint_interval_s,
            )
            parts.callback(self._checkpoints.close)
            # torchrun starts all of them again when one has failed: then they go on
            restarts = ranks.sum(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
            resume = "all" if any(restarts) else options.resume
            self.training = training = self._checkpoints.build(training_cls, resume, updater_fn)
            self._trained_s = training.elapsed_s  # the time between two runs does not count
            training.join(ranks)
            if options.init_policy is not None and training.total_updates == 0:
                _start_from(training, options.init_policy)
            self._checkpoints.gather_receipts()
            if ranks.rank:
                model_path = policies_path = None
            file = cfg.path_of_run(model_path, "MODEL_PATH_TRAINER")
            folder = cfg.path_of_run(policies_path, "POLICIES_FOLDER")
            newest = self._newest_version(folder)
            self._saver = _saver_of(training, file, folder, options)
            if self._saver is not None:
                parts.callback(self._saver.close)
            self.link = connect(
                LinkParts(training, self._checkpoints.receiver, self._saver, newest)
            )
            parts.callback(self.link.close)
            ranks.begin()
            self._parts = parts.pop_all()
        close_at_exit(self, turn=1)

    def _newest_version(self, policies: Path | None) -> int:
        """Return the newest version of a policy of this run, from which all ranks count on."""
        kept, ranks = self.training.kept, self.ranks
        versions = [] if policies is None else PolicyStore(policies).versions()
        newest = max(kept.version, *versions, 0)
        newest = ranks.sum(0 if ranks.rank else newest)[0]
        if not kept.version:
            kept.earlier = newest
        return newest

    def run(self, about: StartFields | None = None) -> None:
        """Train until the epochs are done, time is up, or Ctrl-C; blocks.

        Meanwhile torch leaves one core to other threads, which would otherwise delay it. It
        computes with all other cores, with fewer if `torch.set_num_threads` asked for fewer, or as
        `OMP_NUM_THREADS` says if that is set.

        Args:
            about: further fields of `metrics.starts.Start`, for the run's run.json.

        Raises:
            RefusedError, CredentialsError: the server does not accept this trainer.
            MemoryContractError: the user's memory broke its contract.
            CheckpointError: training is over, but its last state could not be written.
            RankError: another of several trainers is gone, or its parameters differ.
            ShortageError: memory ran out.
            FinishedError: the run has already done its epochs or its minutes; also logged in one
                line.
        """
        self._run(about)

    def run_with_wandb(
        self,
        entity: str | None = None,
        project: str | None = None,
        run_id: str | None = None,
        key: str | None = None,
        *,
        about: StartFields | None = None,
    ) -> None:
        """Train as `run` does, and log to Weights & Biases, which can neither stop nor stall
        training.

        Args:
            entity: wandb user or team.
            project: wandb project.
            run_id: name of the run; the same id continues a run.
            key: wandb API key; None: wandb's own settings. With WANDB_MODE=offline the run stays on
                this machine, and `wandb sync` uploads it later.
            about: as in `run`.

        Raises:
            ConfigError: a partial holds positional arguments, which have no name to be logged
                under.
        """
        config = partial_to_dict(functools.partial(self._training_cls))
        folder = self._metrics_path.parent / "wandb"
        make = functools.partial(
            WandbSink, folder, key, entity=entity, project=project, id=run_id, config=config
        )
        self._run(about, make)

    def stop(self) -> None:
        """End the current (or next) `run` after its current training step, with a checkpoint. Any
        thread, or a signal handler.
        """
        self._stop.set()

    def close(self) -> None:
        """End `run` if another thread is in it, and disconnect. Calling it twice is fine."""
        self._closed = True
        self.stop()
        while not self._running.acquire(timeout=_LOOK_S):
            pass
        try:
            self._parts.close()
        finally:
            self._running.release()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def worker_versions(self) -> dict[str, int]:
        """The policy version that each living worker drives with, by the worker's name; updated
        twice a second.
        """
        return self.link.workers.versions()

    def average_reward(self) -> float | None:
        """Return the mean reward of the newest `reward_window` decisions of all workers, or None if
        there are none yet.
        """
        return self.training.recent_rewards.mean()

    def _run(self, about: StartFields | None, *further: Callable[[], Sink]) -> None:
        try:
            self.training.refuse_finished(self.training.epoch, self._trained_s)
        except FinishedError as error:
            log.error("%s", error)  # a script ends with this line
            raise
        sinks: list[Sink] = []
        if self.ranks.rank == 0:
            asked_for = [ConsoleSink()] if self._sinks is None else self._sinks
            sinks = [JsonLinesSink(self._metrics_path), *asked_for, *(make() for make in further)]
        with self._running, contextlib.ExitStack() as closing:
            self.training.elapsed_s = self._trained_s
            for sink in sinks:
                closing.callback(sink.close)
            closing.callback(self._end_run)
            with (
                self._start_noted(about or {}),
                _interrupt_calls(self.stop),
                _one_core_left(),
                self._memory_named(),
            ):
                self._run_epochs([_Records(sinks, self._saver, self.link)])

    def _end_run(self) -> None:
        """Keep the time trained; let the next run train, unless this trainer is closed."""
        self._trained_s = self.training.elapsed_s
        self._stop.clear()
        if self._closed:  # perhaps just now
            self._stop.set()

    def _run_epochs(self, listeners: Sequence[Listener]) -> None:
        training = self.training
        link = self.link
        training.publish(link)
        while not training.is_over(self._stop.is_set):
            training.run_epoch(link, listeners, self._stop.is_set)
            training.publish(link)
            self._checkpoints.save(training)
        self._checkpoints.finish(training)

    def save_checkpoint(self) -> None:
        """Write a checkpoint now, if this trainer keeps any, and wait until it is written.

        A full disk is logged and does not stop training.
        """
        self._checkpoints.save(self.training, wait=True)

    @contextlib.contextmanager
    def _memory_named(self) -> Iterator[None]:
        """Explain in one line what to do if memory runs out, of this process or of its GPU."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not _OUT_OF_MEMORY.search(str(error)):
                raise
            memory = self.training.memory
            raise ShortageError(
                f"no memory is left for training ({len(memory):,} transitions are kept, "
                f"memory_size is {memory.memory_size:,}): make memory_size or batch_size smaller, "
                "or end other programs; the last checkpoint and all stored samples stay "
                f"({one_line(error, _MAX_CAUSE)})"
            ) from None

    @contextlib.contextmanager
    def _start_noted(self, about: StartFields) -> Iterator[None]:
        """Record in run.json that this run begins, and how it ends; a write that fails is only
        logged.
        """
        device = str(self.training.device)
        gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else ""
        start = describe_start(**{"task": _task_of(self.training), "gpu": gpu, **about})
        starts = [*read_starts(self._metrics_path.parent), start]
        self._note(starts)
        try:
            yield
            start.ended = "stopped" if self._stop.is_set() else "done"
        except BaseException as error:
            start.ended = f"failed: {one_line(error)}"
            raise
        finally:
            self._note(starts)

    def _note(self, starts: list[Start]) -> None:
        try:
            if self.ranks.rank == 0:
                write_starts(self._metrics_path.parent, starts)
        except OSError as error:
            log.error("run.json cannot be written: %s; training goes on", error)


def _saver_of(
    training: TrainingOffline, path: Path | None, folder: Path | None, options: TrainerOptions
) -> Saver | None:
    """Make the saver of policies, or return None if no file and no store is wanted."""
    if path is None and folder is None:
        return None
    store = None if folder is None else PolicyStore(folder, training.kept.earlier)
    run = "" if folder is None else folder.parent.name
    card = describe(training.agent.get_actor(), training.memory.obs_preprocessor, run)
    return Saver(path, store, card, options, lambda: training.total_updates)


def _start_from(training: TrainingOffline, init_policy: str) -> None:
    try:
        path = find_policy(init_policy)
        card, weights = read_policy(path)
        training.start_from(weights, 0 if card is None else card.training_steps)
    except (PolicyError, OSError) as error:
        raise ConfigError(f"init_policy is {init_policy}: {error}") from None
    log.info("this training starts from the policy %s", path)


def _task_of(training: TrainingOffline) -> str:
    """Return the environment's name, or an empty string if the trainer has only its spaces."""
    if isinstance(training.env_cls, Sequence):
        return ""
    name = argument_of(training.env_cls, "id")
    return name if isinstance(name, str) else name_of(taken_apart(training.env_cls)[0])


@contextlib.contextmanager
def _interrupt_calls(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block, let the first Ctrl-C call `stop` and a second one interrupt as usual. Does
    nothing outside the main thread, or if the script handles SIGINT itself.
    """

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log.info("stopping after this step; Ctrl-C again ends at once")
        stop()

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def _one_core_left() -> Iterator[None]:
    """Within the block, let torch use all cores but one, or fewer if fewer were asked for. Does
    nothing if OMP_NUM_THREADS is set.
    """
    before = torch.get_num_threads()
    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(min(before, cores_to_train_with()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def partial_to_dict(value: object) -> object:
    """Return the arguments of a partial, including those of partials inside it, as plain values.

    Raises:
        ConfigError: a partial holds positional arguments.
    """
    if not isinstance(value, functools.partial):
        return value if isinstance(value, bool | int | float | str | None) else name_of(value)
    if value.args:
        raise ConfigError(
            f"partial({name_of(value.func)}, …) holds positional arguments ({value.args!r:.80}); "
            "name them, so that the run's configuration can be logged"
        )
    return {"__name__": name_of(value.func)} | {
        name: partial_to_dict(part) for name, part in value.keywords.items()
    }
