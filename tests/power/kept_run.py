"""A run that keeps all that a trainer's machine keeps, deterministically, and what must be found of it after a cut.

`drive` is a trainer in one thread: packets come, are stored and acknowledged; checkpoints and policies are written,
keys made and revoked, and now and then the trainer ends and another one goes on. `Promises` notes what was promised
when. `check` starts from what a cut has left, as the next process does, and says what is missing.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from disk import PowerDisk, State
from numbered_packets import SIZE, SMALL_BYTES, RecordingMemory, end_of, number_of, take

from tmrl_like.base.functional import partial
from tmrl_like.delivery.sample_store import SampleStore
from tmrl_like.errors import CredentialsError, PolicyError
from tmrl_like.policies.policy_file import describe, read_policy
from tmrl_like.policies.policy_store import PolicyStore
from tmrl_like.testing.fakes import CountingAgent, CountingEnv
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.transport.credentials import AuthorizedKeys, KeyFolder

WORKERS = ("a", "b")
TAG = "kept"
LATE = 1000


@dataclass(frozen=True)
class Promises:
    """What the disk must hold.

    Attributes:
        acked: packets of each worker that are acknowledged as stored, up to this one.
        updates: training steps of the newest checkpoint that is complete.
        keys: names of peers that may connect.
        revoked: names of peers that may not.
        tagged: newest policy that has a tag.
    """

    acked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WORKERS, 0))
    updates: int = 0
    keys: frozenset[str] = frozenset()
    revoked: frozenset[str] = frozenset()
    tagged: int = 0


class InPlace(Executor):
    """Does at once what it is given: so the order of all operations is the same in each run."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*args, **kwargs))
        except OSError as error:
            done.set_exception(error)
        return done


class KeptRun:
    """The parts that write on a trainer's machine."""

    def __init__(self, root: Path, sync_every_s: float = 0.25) -> None:
        make_store = partial(SampleStore, small_bytes=SMALL_BYTES, small_files=8)
        self.kept = Checkpoints(
            root / "training", sync_every_s=sync_every_s, make_store=make_store, beside=lambda name: InPlace()
        )
        memory = partial(RecordingMemory, memory_size=SIZE, batch_size=4)
        try:
            self.training = self.kept.build(partial(TrainingOffline, CountingEnv, memory, CountingAgent), "all")
        except BaseException:
            self.kept.close()
            raise
        self.memory = self.training.memory
        self.receiver = self.kept.receiver
        self.store = PolicyStore(root / "policies")
        self.keys = KeyFolder(root / "keys")

    def stored(self) -> dict[str, int]:
        return {worker: number_of(entry) for worker, _, entry in self.receiver.receipts}

    def take(self, worker: str, number: int, now: float) -> Iterator[tuple[str, int]]:
        """Yields what is acknowledged as stored."""
        return take(self.training, self.receiver, worker, number, now)

    def publish(self, version: int) -> None:
        """As the saver does."""
        actor = self.training.agent.get_actor()
        with torch.no_grad():
            actor.layer.bias.fill_(float(version))
        card = msgspec.structs.replace(describe(actor), version=version)
        self.store.add(actor.weights(), card)
        self.store.collect(at_most=3)


@dataclass
class Driven:
    """A run that is cut afterwards.

    Attributes:
        power: its disk, with all operations.
        promised: what was promised, and from which operation on.
    """

    power: PowerDisk
    promised: list[tuple[int, Promises]] = field(default_factory=list)

    def states(self) -> Iterator[tuple[int, State, Promises]]:
        """After each operation the disk, and what it must hold."""
        held, coming = Promises(), iter([*self.promised, (len(self.power.operations) + 1, Promises())])
        at, following = next(coming)
        for number, state in self.power.states():
            while at <= number:
                held = following
                at, following = next(coming)
            yield number, state, held


def drive(
    root: Path,
    packets: int,
    seed: int,
    sync_every_s: float = 0.25,
    before: Callable[[int], object] = lambda number: None,
    tell: Callable[[Promises], object] = lambda promises: None,
) -> Driven:
    """Have all parts write, until so many packets were taken; `before` each operation, and `tell` what is promised."""
    rng = random.Random(seed)
    with PowerDisk(root) as power:
        power.before = before
        driven, promises, now, version, sent = Driven(power), Promises(), 0.0, 0, dict.fromkeys(WORKERS, 0)

        def note(**changes: object) -> None:
            nonlocal promises
            promises = replace(promises, **changes)
            driven.promised.append((len(power.operations), promises))
            tell(promises)

        run = KeptRun(root, sync_every_s)
        run.keys.server_keys()
        note(keys=frozenset({"local"}))
        for _ in range(packets):
            now += rng.uniform(0.0, 0.1)
            worker = rng.choice(WORKERS)
            sent[worker] += 1
            for who, stored in run.take(worker, sent[worker], now):
                note(acked={**promises.acked, who: stored})
            if rng.random() < 0.05:
                run.training.total_updates += 1
                run.kept.save(run.training, version, wait=True)
                note(updates=run.training.total_updates)
            if rng.random() < 0.05:
                version += 1
                run.publish(version)
                if version % 4 == 0:
                    run.store.tag(str(version), f"{TAG}-{version}")
                    note(tagged=version)
            if rng.random() < 0.02:
                name = f"peer{rng.randrange(4)}"
                if name in promises.keys:
                    note(keys=promises.keys - {name})  # from here on it may be gone …
                    run.keys.revoke(name)
                    note(revoked=promises.revoked | {name})  # … and from here on it must be
                else:
                    note(revoked=promises.revoked - {name})
                    run.keys.invite(name, ("worker",))
                    note(keys=promises.keys | {name})
            if rng.random() < 0.01:  # the trainer ends, and the workers send again what it had not acknowledged
                run.kept.close()
                run = KeptRun(root, sync_every_s)
                sent = {worker: run.stored().get(worker, 0) for worker in WORKERS}
        run.kept.close()
    return driven


@dataclass
class Found:
    """What the process after a cut misses, in all.

    Attributes:
        lost: samples that were acknowledged as stored and are not in the memory, which has room for them.
        damaged: samples in the memory that are not as they were sent.
        wrong: everything else, a line each.
    """

    lost: int = 0
    damaged: int = 0
    wrong: list[str] = field(default_factory=list)


def check(root: Path, promises: Promises, found: Found, again: int = 3) -> None:
    """Start as the next process does, and go on: `again` packets of each worker come, from the first not stored on."""
    try:
        run = KeptRun(root)
    except Exception as error:
        found.wrong.append(f"the trainer does not start: {error!r}")
        return
    with contextlib.closing(run.kept):
        _check_samples(run, promises, found)
        if run.training.total_updates < promises.updates:
            found.wrong.append(f"checkpoint {run.training.total_updates} of {promises.updates}")
        stored = run.stored()
        for worker in WORKERS:
            for number in range(stored.get(worker, 0) + 1, stored.get(worker, 0) + 1 + again):
                list(run.take(worker, number, float(number)))
        _check_samples(run, promises, found)
        run.kept.save(run.training, 0, wait=True)
        _check_policies(run.store, promises, found)
        run.publish(LATE)
        _check_keys(run.keys, promises, found)
        if not found.wrong:
            run.keys.invite("late", ("worker",))
    _check_litter(root, found)


def _check_litter(root: Path, found: Found) -> None:
    """What a killed process was about to write does not stay."""
    files = [path for path in root.rglob("*") if path.is_file()]
    drafts = [path.name for path in (*files, *root.glob(".*")) if path.name[0] == "."]
    kinds = {"checkpoint-*": 2, "policies/[0-9]*.safetensors": 4, "*.log": 40}
    many = [kind for kind, most in kinds.items() if sum(path.match(kind) for path in files) > most]
    if drafts or many:
        found.wrong.append(f"litter: {drafts}, {many}")


def _check_samples(run: KeptRun, promises: Promises, found: Found) -> None:
    found.damaged += run.memory.damaged
    stored = run.stored()
    total = 0
    for worker in WORKERS:
        numbers, end = run.memory.numbers[worker], end_of(stored.get(worker, 0))
        gaps = [i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1]
        newest = numbers[gaps[-1] if gaps else 0 :]  # before them may be what was removed and has come back
        total += len(newest)
        if numbers != sorted({*numbers}) or newest != list(range(end - len(newest), end)):
            found.wrong.append(f"samples of {worker} do not follow each other up to packet {end}: {numbers}")
        found.lost += max(0, end_of(promises.acked[worker]) - end)
    ever = sum(end_of(stored.get(worker, 0)) for worker in WORKERS)
    if total < min(SIZE, ever):
        found.lost += min(SIZE, ever) - total
    if run.training.total_samples != ever:
        found.wrong.append(f"{run.training.total_samples} samples counted, {ever} stored")


def _check_policies(store: PolicyStore, promises: Promises, found: Found) -> None:
    for name in [*map(str, store.versions()), *store.tags()]:
        try:
            card, weights = read_policy(store.path(name))
            bias = weights.arrays()["layer.bias"][0]
        except PolicyError as error:
            found.wrong.append(f"policy {name}: {error}")
            continue
        version = int(name.removeprefix(f"{TAG}-"))
        if (card.version, bias) != (version, version):
            found.wrong.append(f"policy {name} is {card.version}, {bias}")
    if promises.tagged and f"{TAG}-{promises.tagged}" not in store.tags():
        found.wrong.append(f"the tag of {promises.tagged} is gone")


def _check_keys(keys: KeyFolder, promises: Promises, found: Found) -> None:
    try:
        server, peer = keys.server_keys(), keys.peer_keys()
        if peer.server_curve_public != server.curve_public:
            found.wrong.append("the keys do not belong together")
    except CredentialsError as error:
        found.wrong.append(f"keys: {error}")
        return
    names = {identity.name for identity in AuthorizedKeys(keys).identities.values()}
    if missing := promises.keys - names:
        found.wrong.append(f"keys that are gone: {missing}")
    if back := promises.revoked & names:
        found.wrong.append(f"revoked keys that are back: {back}")
