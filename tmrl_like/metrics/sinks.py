"""Destinations of metrics: console, JSON lines, wandb, TensorBoard. No sink can stop or stall
training.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import sys
from array import array
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tmrl_like.base.text import clock, counted, duration
from tmrl_like.base.threads import start_thread
from tmrl_like.errors import ConfigError, MissingExtraError
from tmrl_like.metrics.reading import EPOCH, WARM_UP, Record, numbers_of, return_of
from tmrl_like.wire.condition import FIGURES

log = logging.getLogger("tmrl_like.metrics")

SHOWN = {
    "return_test_mean": "test return {:.2f}",
    "return_train_mean": "training return {:.2f}",
    "reward_recent_mean": "reward {:.3g}",
    "terminated_test_share": "terminated {:.0%}",
}


# groups of TensorBoard's tags, by how a metric's name begins; other metrics of an agent: agent
_GROUPS = {
    "episodes": "episode return_test_ return_train_ reward_recent_ terminated_ faults_",
    "timing": "sample_age_ policy_age_ policy_staleness_ inference_ period_error_ safe_action_ "
    "takeover_ demonstration_",
    "schedule": (
        "epoch round idle_s time_s training_steps_ env_steps_ dropped_stale_ memory_transitions"
    ),
    "fleet": "workers deadline_miss_ policy_lag_ refused_packets_ rejected_workers_ log_fails "
    + " ".join(figure.metric_of(field) for field, figure in FIGURES.items() if figure.is_summed),
    "diagnosis": (
        "learning observation_ action_spread policy_change critic_ reward_low reward_high value_"
    ),
    "losses": "loss_",
    "in_force": "agent. memory. trainer.",
}
# episodes at the beginning of a run that are compared with those at its end
_ROUND_EVERY_S = 5.0
_COMPARED_EPISODES = 10


class Sink(Protocol):
    """Takes records: flat dictionaries with a "kind" ("round", "episode" or "warm_up")."""

    def write(self, record: Record) -> None:
        """Take one record; must be quick, and must not raise."""

    def close(self) -> None:
        """Finish writing within seconds."""


class JsonLinesSink:
    """Writes one JSON object a line, flushed line by line: after a kill, at most the last line of
    the file is incomplete.

    Values that are not finite become null.
    """

    def __init__(self, path: Path) -> None:
        """Raise ConfigError if the file cannot be opened."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise ConfigError(f"cannot write metrics to {path}: {error}") from None
        self.path = path
        self._failed = False
        if self._file.tell():  # a kill may have cut off the last line: it must not take the next
            self._file.seek(-1, os.SEEK_END)
            self._file.write(b"\n" if self._file.read() != b"\n" else b"")

    def write(self, record: Record) -> None:
        try:
            self._file.write(as_json(record) + b"\n")
            self._file.flush()
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.error(
                    "cannot write metrics to %s: %s; training goes on without them",
                    self.path,
                    error,
                )
            self._failed = True

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:
            log.error("the last metrics could not be written to %s", self.path)


def as_json(record: Record) -> bytes:
    """Return a record as a JSON object in one line; values that are not finite become null."""
    return msgspec.json.encode(record, enc_hook=float)


class ConsoleSink:
    """Prints one line a round, and at the end a summary. Of rounds shorter than 5 s one line stands
    for several, with the newest value of each figure.
    """

    def __init__(self) -> None:
        # of test episodes, of training episodes
        self._returns = {True: array("d"), False: array("d")}
        self._time_s = 0.0
        self._round: Record = {}  # what no line has shown yet
        self._next_s = -math.inf  # of the next line

    def write(self, record: Record) -> None:
        self._time_s = record.get("time_s") or self._time_s
        if record.get("kind") == "round":
            self._round |= {name: value for name, value in record.items() if value is not None}
            if self._time_s >= self._next_s:
                self._next_s = self._time_s + _ROUND_EVERY_S
                self._print_round()
        elif record.get("kind") == "warm_up":
            self._print(describe_warm_up(record))
        elif (return_ := return_of(record)) is not None:
            self._returns[record["test"]].append(return_)

    def close(self) -> None:
        """Print what is not shown yet, and the summary, unless no episode has ended."""
        self._print_round()
        tests = self._returns[True]
        others = self._returns[False]
        returns = tests or others
        if not returns:
            return
        n = min(_COMPARED_EPISODES, (len(returns) + 1) // 2)
        before = sum(returns[:n]) / n
        after = sum(returns[-n:]) / n
        self._print(
            f"trained for {clock(self._time_s)}: {'test' if tests else 'training'} return "
            f"{before:.2f} at first, {after:.2f} in the end (means of {counted(n, 'episode')}); "
            f"{len(tests):,} test and {len(others):,} training episodes"
        )

    def _print_round(self) -> None:
        if self._round:
            self._print(describe_round(self._round))
            self._round = {}

    def _print(self, text: str) -> None:
        """Print a line, unless its reader has gone or its disk is full."""
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


class TensorBoardSink:
    """Writes scalars for TensorBoard over training steps, in groups: `episodes/return_test_mean`,
    `losses/loss_critic`, ….
    """

    def __init__(self, folder: Path) -> None:
        """Write to `folder`, which is created if it does not exist.

        Raises:
            MissingExtraError: TensorBoard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError(
                "TensorBoard is not installed: pip install 'tmrl_like[tensorboard]'"
            ) from None
        self._open = partial(SummaryWriter, str(folder))
        self._writer: SummaryWriter | None = None  # until the first round
        self._failed = False

    def write(self, record: Record) -> None:
        if record.get("kind") != "round" or self._failed:
            return
        step = record["training_steps_total"]
        try:
            if self._writer is None:
                # hides these and later steps of a trainer that was killed
                self._writer = self._open(purge_step=step)
            for name, value in numbers_of(record).items():
                self._writer.add_scalar(tag_of(name), value, step)
        except Exception as error:
            self._fail(error)

    def close(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            log.error("TensorBoard: %s; training goes on without it", error)
        self._failed = True


class WandbSink:
    """Sends metrics to Weights & Biases, in a thread of its own.

    Whatever wandb does (no key, no network, an exception) does not affect training: records wait in
    a bounded queue, from which the oldest are dropped. Without a key or a network the run is kept
    offline in its folder.
    """

    MAX_WAITING = 10_000
    CLOSE_WITHIN_S = 10.0

    def __init__(self, folder: Path, key: str | None = None, **init: Any) -> None:
        """Start wandb in the background, with its files in `folder`; `key` is as in
        `Trainer.run_with_wandb`, the rest as in `wandb.init`.
        """
        self._init = {"dir": str(folder), "resume": "allow", **init}
        self._key = key
        self._queue: queue.Queue[Record | None] = queue.Queue()
        self.failed = ""
        self._thread = start_thread(self._run, "tmrl-wandb")

    def write(self, record: Record) -> None:
        if self.failed or record.get("kind") != "round":
            return
        while self._queue.qsize() >= self.MAX_WAITING:
            self._queue.get_nowait()
        self._queue.put(record)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(self.CLOSE_WITHIN_S)
        if self._thread.is_alive():
            log.warning("wandb does not finish; leaving it")

    def _run(self) -> None:
        try:
            run = self._start()
            while (record := self._queue.get()) is not None:
                run.log(numbers_of(record))
            run.finish()
        except Exception as error:
            self.failed = str(error) or type(error).__name__
            log.error("wandb: %s; training goes on without it", self.failed)

    def _start(self) -> Any:
        import wandb

        os.makedirs(self._init["dir"], exist_ok=True)
        if self._key is not None:
            os.environ["WANDB_API_KEY"] = self._key
        settings = wandb.Settings(init_timeout=15, silent=True)
        try:
            return wandb.init(settings=settings, **self._init)
        except Exception as error:
            log.warning(
                "wandb is not reachable (%s): keeping the run offline in %s",
                error,
                self._init["dir"],
            )
        return wandb.init(mode="offline", settings=settings, **self._init)


def describe_round(record: Record) -> str:
    """Return one readable line about a round."""
    facts = [
        text.format(record[name]) for name, text in SHOWN.items() if record.get(name) is not None
    ]
    facts += [f"{name} {words}" for name, words in rows_of_round(record)]
    begin = f"{EPOCH}{record['epoch']} round {record['round']}: {clock(record['time_s'])}"
    return " · ".join((begin, *facts))


def rows_of_round(r: Record) -> list[tuple[str, str]]:
    """Return names and values of a round for people, without those that there is nothing to say
    of.
    """
    ages = (("sample", r.get("sample_age_p50_s")), ("policy", r.get("policy_age_p50_s")))
    faults = r.get("env_faults_total")
    rejected = r.get("rejected_workers_total")
    rows = [
        ("samples", f"{r['env_steps_total']:,}, {r['env_steps_per_s']:.1f}/s"),
        (
            "training",
            f"{r['training_steps_total']:,} steps, {r['training_steps_per_s']:.0f}/s, "
            f"{r['training_steps_per_env_step']:.2f} per sample",
        ),
        ("does it learn?", _learns_in_words(r)),
        ("loss", _loss_in_words(r)),
        (
            "median age",
            ", ".join(f"{name} {duration(age_s)}" for name, age_s in ages if age_s is not None),
        ),
        ("overruns", f"{r.get('overruns_total') or 0:.0f}"),
        ("faults", f"{faults:.0f} of environments" if faults else ""),
        (
            "rejected",
            f"{rejected:.0f} worker processes, whose samples do not fit" if rejected else "",
        ),
        ("disk", "no room for samples" if r.get("log_fails") else ""),
    ]
    return [(name, words) for name, words in rows if words]


def describe_warm_up(record: Record) -> str:
    """Return a text that says how many of the samples that training waits for have come."""
    return (
        f"{WARM_UP}: {record['env_steps_total']:,} of {record['start_training']:,} (start_training)"
    )


def _learns_in_words(record: Record) -> str:
    """Return the round's diagnosis in an answer, or an empty string if it has none."""
    line = str(record.get("learning") or "")
    return "yes" if line == "learning" else line.replace("not learning because ", "no: ", 1)


def _loss_in_words(record: Record) -> str:
    """Return a round's first loss beside its loss on held-out episodes, or an empty string if there
    is none.
    """
    for name, held_out in record.items():
        trained = record.get(name.removesuffix("_held_out"))
        if name.endswith("_held_out") and held_out is not None and trained is not None:
            return f"{trained:.3g}, held out {held_out:.3g}"
    return ""


def tag_of(name: str) -> str:
    """Return a metric's name with its group in front, as TensorBoard shows it."""
    groups = (group for group, begins in _GROUPS.items() if name.startswith(tuple(begins.split())))
    return f"{next(groups, 'agent')}/{name}"
