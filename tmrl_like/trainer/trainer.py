"""The trainer: runs `TrainingOffline`, keeps it on disk, tells the world how it goes."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

import tmrl_like.config.config_constants as cfg
from tmrl_like.base.factories import argument_of, taken_apart
from tmrl_like.base.options import with_given
from tmrl_like.base.processes import cores_to_train_with
from tmrl_like.base.script import close_at_exit
from tmrl_like.base.text import name_of, one_line
from tmrl_like.config.paths import RunPath, RunPaths
from tmrl_like.config.run_lock import use_run
from tmrl_like.delivery.folder import new_name
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.engine.options import EngineOptions
from tmrl_like.errors import ConfigError, FinishedError, PolicyError, ShortageError, expect
from tmrl_like.metrics.sinks import ConsoleSink, JsonLinesSink, Sink, WandbSink
from tmrl_like.metrics.starts import Start, describe_start, read_starts, write_starts
from tmrl_like.policies.policy_file import code_of, describe, read_policy
from tmrl_like.policies.store import PolicyStore, find_policy
from tmrl_like.policies.weight_file import first_not_finite, read_file
from tmrl_like.session.ring import Ring, connect_to_one
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.link import TrainerLink
from tmrl_like.trainer.offline import NoLink, expect_no_worker
from tmrl_like.trainer.options import Resume, TrainerOptions
from tmrl_like.trainer.ranks import Alone, Ranks, meet
from tmrl_like.trainer.sample_check import SampleCheck
from tmrl_like.trainer.saver import Saver
from tmrl_like.trainer.schedule import TrainerInterface, TrainingOffline
from tmrl_like.transport import KeyFolder, TransportOptions, addresses_of
from tmrl_like.wire.messages import Rank, share_of
from tmrl_like.wire.spaces import describe_spaces

log = logging.getLogger("tmrl_like.trainer")

_LOOK_S = 0.25  # a wait without a limit cannot be interrupted by Ctrl-C on Windows
_MAX_CAUSE = 100
_OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory")  # in the words of torch


@dataclass(frozen=True)
class LinkParts:
    """What a connection of a trainer's works with.

    Attributes:
        training: what is trained.
        receiver: what is known of the workers' samples.
        saver: keeps policies; None: nobody does.
        newest_version: of the policy published last, by an earlier process of this training; 0: none was.
    """

    training: TrainingOffline
    receiver: Receiver
    saver: Saver | None
    newest_version: int


class Trainer:
    """Trains where the hardware is, from what the workers send.

    Where torchrun started several processes, the trainers in them learn as one (`RankOptions`): each averages its
    gradients with the others', and rank 0 publishes, logs and saves.

    Construction builds the training (or loads its checkpoint) and connects, without waiting for the
    server. `run` blocks until the epochs are done. Use it as a context manager, or call `close`; one that is still
    open when the script ends is closed then.

    Attributes:
        training: what it trains.
        link: its connection.
        ranks: the trainers that learn as one.
        about_start: further fields of `metrics.starts.Start`, for the run's run.json.
    """

    def __init__(
        self,
        training_cls: Callable[[], TrainingOffline],
        server_ip: str | Sequence[str] | None = None,
        model_path: str | Path | RunPath | None = RunPath.OF_RUN,
        checkpoint_path: str | Path | RunPath | None = RunPath.OF_RUN,
        dump_run_instance_fn: Callable[[TrainingOffline, Any], None] | None = None,
        load_run_instance_fn: Callable[[Any], TrainingOffline] | None = None,
        updater_fn: Callable[[TrainingOffline, Any], TrainingOffline] | None = None,
        *,
        server_port: int | None = None,
        transport: str = "zmq",
        keys_dir: str | Path | None = None,
        name: str | None = None,
        metrics_path: str | Path | None = None,
        policies_path: str | Path | RunPath | None = RunPath.OF_RUN,
        sinks: Sequence[Sink] | None = None,
        resume: Resume | None = None,
        options: TrainerOptions | None = None,
        limits: TransportOptions | None = None,
        engine: EngineOptions | None = None,
        offline: bool = False,
        connect: Callable[[LinkParts], TrainerInterface] | None = None,
    ) -> None:
        """Build the training and, unless it is `offline`, connect.

        Args:
            training_cls: makes the training, e.g. `partial(TrainingOffline, memory_cls=…, …)`.
            server_ip: the server's address; None: `cfg.SERVER_IP_FOR_TRAINER`, which is this machine unless set.
            model_path: the newest published weights are kept there; left out: the run's file
                (`cfg.MODEL_PATH_TRAINER`); None: nowhere.
            checkpoint_path: folder of the checkpoint, written after each epoch beside training, and of the samples,
                kept as they arrive; both are read at start if they are there; left out: the run's
                (`cfg.CHECKPOINT_PATH`); None: nothing is kept.
            dump_run_instance_fn: f(training, checkpoint_path), instead of our own format.
            load_run_instance_fn: f(checkpoint_path) -> training, instead of our own format.
            updater_fn: f(training loaded from a checkpoint, training_cls) -> training, e.g. to change
                hyper-parameters that the checkpoint brought back (an optimiser's learning rate).
            server_port: the server's port; None: `cfg.PORT`, which is 7790 unless set.
            transport: "zmq", "tlspyo" or "inproc"; the server's.
            keys_dir: where this machine's key is; None: `cfg.KEYS_FOLDER`.
            name: this trainer's name; None: made from host and process.
            metrics_path: file for metrics as JSON lines, and run.json beside it; None: in the run's folder
                (`cfg.RUN_FOLDER`), which this trainer owns until it is closed.
            policies_path: folder of the policy store; left out: the run's (`cfg.POLICIES_FOLDER`); None: there is none.
            sinks: further places for metrics; None: the console.
            resume: as in `options`, in place of what is there.
            options: how it runs the training.
            limits: of the transport.
            engine: take samples from it, and give it the policies, in place of a server.
            offline: train from what the memory holds, a data set or what an earlier process of this run has kept,
                without server and worker: nothing is connected, and no limit of the pace holds.
            connect: makes what training sees of its workers, in the place of the connection to a server.

        Raises:
            CheckpointError: the checkpoint is damaged or of another training.
            CredentialsError: this machine's key cannot be read.
            ConfigError: an argument is wrong, there is nothing to train from offline, or another process uses the run.
            MissingExtraError: an engine is given, and what speaks to it is not installed.
            ShortageError: the system gives it no threads.
        """
        self._options = options = with_given(TrainerOptions, options, resume=resume)
        self._training_cls = training_cls
        port = cfg.PORT if server_port is None else server_port
        servers = addresses_of(server_ip or cfg.SERVER_IP_FOR_TRAINER, port)
        if len(servers) > 1 and engine is None and not offline:
            raise ConfigError(
                f"the trainer dials one server, and server.host names {len(servers)}: what workers send to the "
                "others reaches it over an engine only (server.engine); without one name its server (server.host)"
            )
        path = cfg.path_of_run(checkpoint_path, "CHECKPOINT_PATH")
        self.ranks = ranks = meet(options.distributed)
        self._checkpoints = Checkpoints(
            *(path, dump_run_instance_fn, load_run_instance_fn, ranks),
            sync_every_s=options.sync_every_s,
        )
        self._metrics_path = Path(metrics_path or cfg.RUN_FOLDER / "metrics.jsonl")
        self._extra_sinks = sinks
        self.about_start: dict[str, str] = {}
        self._use = contextlib.ExitStack()  # of the run's folder
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._runner: threading.Thread | None = None
        with contextlib.ExitStack() as undo:  # what a failure below must not leave behind
            undo.callback(self._use.close)
            undo.callback(ranks.leave)
            undo.callback(self._checkpoints.close)
            if metrics_path is None:
                own = RunPaths(cfg.RUN_NAME, cfg.DATA_FOLDER)
                self._use.enter_context(use_run(own, "rank" if ranks.rank else "trainer"))
            self.training = training = self._checkpoints.build(training_cls, options.resume, updater_fn)
            training.ranks = ranks
            training.agent.ranks = ranks if isinstance(ranks, Ranks) else None
            training.should_stop = self._stop.is_set
            if options.init_policy is not None and training.total_updates == 0:
                _start_from(training, options.init_policy)
            receiver = self._checkpoints.receiver
            receiver.check = SampleCheck(training.observation_space, training.action_space, training.memory)
            if offline:
                expect_no_worker(training)
            folder = None if ranks.rank else cfg.path_of_run(policies_path, "POLICIES_FOLDER")
            store = None if folder is None else PolicyStore(folder)
            file = None if ranks.rank else cfg.path_of_run(model_path, "MODEL_PATH_TRAINER")
            newest = max(self._checkpoints.version, *(store.versions() if store is not None else ()), 0)
            newest = ranks.sum(0 if ranks.rank else newest)[0]  # they count alike from here on
            keys = KeyFolder(Path(keys_dir or cfg.KEYS_FOLDER))
            wire: Ring | None = None
            if engine is not None and not offline:
                wire = _engine_link(engine, ranks, self._checkpoints)
            elif not (offline or connect):
                self._checkpoints.gather_receipts(share_of)
                wire = connect_to_one(transport, servers, "", keys, limits)
            if wire is not None:
                undo.callback(wire.close)
            self._saver = self._make_saver(file, store)
            if self._saver is not None:
                undo.callback(self._saver.close)
            parts = LinkParts(training, receiver, self._saver, newest)
            self.link: Any = connect(parts) if connect is not None else NoLink(self._saver, newest)
            if wire is not None:
                self.link = TrainerLink(
                    wire,
                    name or new_name(),
                    describe_spaces(training.observation_space, training.action_space),
                    receiver,
                    training.freshness,
                    self._saver,
                    newest,
                    options.worker_stalled_after_s,
                    Rank(ranks.rank, ranks.size, ranks.group),
                )
            undo.callback(self.link.close)
            ranks.begin()
            undo.pop_all()
        close_at_exit(self, turn=1)

    def _make_saver(self, path: Path | None, store: PolicyStore | None) -> Saver | None:
        """What keeps policies; None: nobody wants them kept."""
        if path is None and store is None:
            return None
        training = self.training
        run = "" if store is None else store.folder.parent.name
        card = describe(training.agent.get_actor(), getattr(training.memory, "obs_preprocessor", None), run)
        return Saver(path, store, card, self._options, lambda: training.total_updates)

    def run(self) -> None:
        """Train until the epochs are done, time is up, or Ctrl-C; blocks.

        Meanwhile torch leaves a core to other threads, which would make it wait: it computes with all others, with
        fewer if `torch.set_num_threads` was called for fewer, or with `OMP_NUM_THREADS` where that is set.

        Raises:
            RefusedError, CredentialsError: the server does not take this trainer.
            MemoryContractError: the user's memory broke its contract.
            CheckpointError: training is over, and its last state could not be written.
            RankError: there are several trainers, and one of them is gone, or learns something else.
            ShortageError: no memory is left.
            FinishedError: the run has done its epochs or its minutes; it is said as well, in one line.
        """
        self._run()

    def run_with_wandb(
        self,
        entity: str | None = None,
        project: str | None = None,
        run_id: str | None = None,
        key: str | None = None,
    ) -> None:
        """As `run`, and log to Weights & Biases, which can neither stop nor stall training.

        Args:
            entity: wandb user or team.
            project: wandb project.
            run_id: name of the run; the same id continues a run.
            key: wandb API key; None: wandb's own settings. With WANDB_MODE=offline the run stays on this machine, and
                `wandb sync` uploads it later.

        Raises:
            ConfigError: a partial holds positional arguments, which have no name to be logged under.
        """
        config = partial_to_dict(self._training_cls)
        folder = self._metrics_path.parent / "wandb"
        self._run(WandbSink(folder, entity, project, run_id, key, config))

    def stop(self) -> None:
        """End `run` after the current training step, with a checkpoint. Any thread, or a signal handler."""
        self._stop.set()

    def close(self) -> None:
        """End `run` if another thread is in it, and leave the server. Twice is fine."""
        self.stop()
        while threading.current_thread() is not self._runner and not self._idle.wait(_LOOK_S):
            pass
        self.link.close()
        self._checkpoints.close()
        self.ranks.leave()
        self._use.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def worker_versions(self) -> dict[str, int]:
        """The version of the policy that drives now, of each living worker by its name; twice a second."""
        versions: dict[str, int] = self.link.workers.versions()
        return versions

    def average_reward(self) -> float | None:
        """Mean reward of the newest `reward_window` decisions of all workers; None: there were none."""
        return self.training.recent_rewards.mean()

    def _run(self, *further: Sink) -> None:
        try:
            self.training.refuse_finished(self.training.epoch, self.training.elapsed_s)
        except FinishedError as error:
            log.error("%s", error)  # which a script ends with
            raise
        asked_for = [ConsoleSink()] if self._extra_sinks is None else self._extra_sinks
        sinks: list[Sink] = [] if self.ranks.rank else [JsonLinesSink(self._metrics_path), *asked_for, *further]

        def write(record: dict[str, Any]) -> None:
            if record["kind"] == "episode" and record["test"] and self._saver is not None:
                self._saver.add_return(record["policy_version"], record["return"])
            for sink in sinks:
                sink.write(record)
            self.link.report(record)

        self.training.observer = write
        self._runner = threading.current_thread()
        self._idle.clear()
        starts, ended = self._begin_note(), "done"
        try:
            with _interrupt_calls(self.stop), _one_core_left(), self._memory_named():
                self._run_epochs()
        except BaseException as error:
            ended = f"failed: {one_line(error)}"
            raise
        finally:
            starts[-1].ended = "stopped" if self._stop.is_set() and ended == "done" else ended
            self._note(starts)
            for sink in sinks:
                sink.close()
            self._idle.set()

    @contextlib.contextmanager
    def _memory_named(self) -> Iterator[None]:
        """Say in one line what to do where memory runs out, of this process or of its GPU."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not _OUT_OF_MEMORY.search(str(error)):
                raise
            memory = self.training.memory
            raise ShortageError(
                f"no memory is left for training ({len(memory):,} transitions are kept, memory_size is "
                f"{memory.memory_size:,}): make memory_size or batch_size smaller, or end other programs; the last "
                f"checkpoint and all stored samples stay ({one_line(error, _MAX_CAUSE)})"
            ) from None

    def _begin_note(self) -> list[Start]:
        """Note in run.json that this run begins; its starts."""
        gpu = torch.cuda.get_device_name() if str(self.training.device).startswith("cuda") else ""
        env_cls = self.training.env_cls
        spaces_alone = isinstance(env_cls, tuple | list)
        env = "the trainer knows its spaces alone" if spaces_alone else msgspec.to_builtins(code_of(env_cls))
        about = {"task": "" if spaces_alone else _task_of(env_cls), "env": env, "gpu": gpu}
        start = describe_start(**about | self.about_start)
        starts = [*read_starts(self._metrics_path.parent), start]
        self._note(starts)
        return starts

    def _note(self, starts: list[Start]) -> None:
        try:
            if self.ranks.rank == 0:
                write_starts(self._metrics_path.parent, starts)
        except OSError as error:
            log.error("run.json cannot be written: %s; training goes on", error)

    def _run_epochs(self) -> None:
        training = self.training
        self.link.broadcast_model(training.agent.get_actor())
        saved_at = -math.inf
        while training.epoch < training.epochs and not training.is_over():
            training.run_epoch(self.link)
            self.link.broadcast_model(training.agent.get_actor())
            is_over = training.epoch >= training.epochs or training.is_over()
            if is_over or time.monotonic() - saved_at >= self._options.checkpoint_interval_s:
                saved_at = time.monotonic()
                self._checkpoints.save(training, self.link.newest_version)
        self._checkpoints.finish(training, self.link.newest_version)

    def save_checkpoint(self) -> None:
        """Write a checkpoint now, if this trainer keeps any, and wait until it is written.

        A full disk is logged, and does not stop training.
        """
        self._checkpoints.save(self.training, self.link.newest_version, wait=True)


def _engine_link(engine: EngineOptions, ranks: Alone, checkpoints: Checkpoints) -> Ring:
    from tmrl_like.engine.reader import Reader
    from tmrl_like.engine.subjects import MAX_RANKS

    most = f"at most {MAX_RANKS}, where there is an engine"
    expect(ranks.size <= MAX_RANKS, "the number of trainers", ranks.size, most)
    checkpoints.gather_receipts(share_of)
    return Ring([", ".join(engine.nodes)], lambda _: Reader(engine), is_quiet=True)


def _start_from(training: TrainingOffline, init_policy: str) -> None:
    try:
        path = find_policy(init_policy)
        card, weights = read_policy(path)
        if name := first_not_finite(read_file(weights)):
            raise PolicyError(f"{name} holds values that are not finite")
        training.agent.start_from(weights, 0 if card is None else card.training_steps)
    except (PolicyError, OSError) as error:
        raise ConfigError(f"init_policy is {init_policy}: {error}") from None
    training.diagnosis.returns.starts_well = True
    log.info("this training starts from the policy %s", path)


def _task_of(env_cls: Any) -> str:
    """What an environment is called."""
    name = argument_of(env_cls, "id")
    return name if isinstance(name, str) else name_of(taken_apart(env_cls)[0])


@contextlib.contextmanager
def _interrupt_calls(stop: Callable[[], None]) -> Iterator[None]:
    """Within it, the first Ctrl-C calls `stop`; a second one interrupts as usual. Main thread only."""

    def on_signal(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log.info("stopping after this step; Ctrl-C again ends at once")
        stop()

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    previous = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def _one_core_left() -> Iterator[None]:
    """Within it, torch computes with all cores but one, or fewer that were asked for; OMP_NUM_THREADS is left alone."""
    before = torch.get_num_threads()
    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(min(before, cores_to_train_with()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def partial_to_dict(value: Any) -> dict[str, Any]:
    """What a partial is called with, partials inside included, in plain values; ConfigError: positional arguments."""
    if not isinstance(value, functools.partial):
        return {"__name__": name_of(value)}
    if value.args:
        raise ConfigError(
            f"partial({name_of(value.func)}, …) holds positional arguments ({value.args!r:.80}); name them, so that "
            "the run's configuration can be logged"
        )
    return {"__name__": name_of(value.func)} | {name: _described(part) for name, part in value.keywords.items()}


def _described(value: Any) -> Any:
    if isinstance(value, functools.partial):
        return partial_to_dict(value)
    return value if isinstance(value, bool | int | float | str | None) else name_of(value)
