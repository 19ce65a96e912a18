"""Checkpoints: what is restored, and what happens if one is damaged or cannot be written."""

import copy
import enum
import random
from collections import OrderedDict
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from kit.episodes import episode
from kit.fakes import CountingAgent
from kit.refusals import one_line
from kit.trainings import delivery
from kit.trainings import training as training_of

from tmrl_like.base.checked import checked_json
from tmrl_like.base.files import disk
from tmrl_like.base.functional import partial
from tmrl_like.errors import CheckpointError
from tmrl_like.trainer.checkpoint_file import FORMAT, Head, read_newest, remove_checkpoints
from tmrl_like.trainer.snapshot import (
    load_checkpoint,
    load_object_state,
    object_state,
    take_snapshot,
)

training = partial(training_of, batch_size=2)


def loaded(folder, **options):
    """Return a new training that resumes from the checkpoint in a folder."""
    one = training(**options)
    load_checkpoint(one, folder)
    return one


def refuse(folder, match, **options):
    with one_line(match, CheckpointError):
        loaded(folder, **options)


def take(one, n=10):
    """Append n samples."""
    one.memory.append(delivery("w", 1, resets=False, n=n).buffer)
    one.total_samples += n


def train(one):
    one.agent.train(one.memory.sample())
    one.total_updates += 1


def saved(folder, times=2):
    """Write checkpoints 1 to `times`, each after 10 more samples and one more training step."""
    one = training()
    for _ in range(times):
        take(one)
        train(one)
        take_snapshot(one, "run").write(folder)
    return one


def names_in(folder):
    return {path.name for path in folder.iterdir()}


# -- what is restored ------------------------------------------------------------------------------


def test_agent_counters_and_returns_are_restored_and_the_memory_stays_as_it_is(tmp_path):
    one = training()
    take(one)
    train(one)
    one.pacer.recorded_samples, one.pacer.unpaced_steps = 5, 1
    one.diagnosis.returns.begin(50_000)
    one.diagnosis.add([episode()])
    returns = copy.deepcopy(vars(one.diagnosis.returns))
    snapshot = take_snapshot(one, "run", unstored_samples=3)
    train(one)  # does not change the snapshot
    one.diagnosis.add([episode()])
    snapshot.write(tmp_path)
    two = training()
    take(two, 4)
    head = load_checkpoint(two, tmp_path)
    assert (head.run, head.number, head.training_steps) == ("run", 1, 1)
    assert float(two.agent.get_actor().state_dict()["layer.bias"]) == 1.0
    assert (two.agent.steps, two.total_updates, two.total_samples) == (1, 1, 7)
    assert two.pacer.state_dict() == one.pacer.state_dict()
    assert vars(two.diagnosis.returns) == returns
    assert len(two.memory.data) == 4


def test_all_random_generators_go_on_where_they_stood(tmp_path):
    def draws(one):
        return [random.random(), np.random.random(), float(torch.rand(())), one.memory.rng.random()]

    one = training()
    take_snapshot(one).write(tmp_path)
    expected = draws(one)
    assert draws(loaded(tmp_path)) == expected


def test_a_training_goes_on_where_there_are_fewer_gpus(tmp_path, monkeypatch):
    restored = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_rng_state_all", lambda: [torch.zeros(16)] * 2)
    monkeypatch.setattr("torch.cuda.set_rng_state_all", restored.extend)
    take_snapshot(training(device="cpu")).write(tmp_path)
    loaded(tmp_path, device="cpu")
    assert len(restored) == 1


class Phase(enum.IntEnum):
    FIRST, LAST = 0, 1


class Kind(str, enum.Enum):  # noqa: UP042 - whose str() is not its value
    WARM, COLD = "warm", "cold"


class Mean(NamedTuple):
    value: float
    count: int


class Scheduled(CountingAgent):
    """An agent with values of classes that derive from those of plain values."""

    phase, kind, rates, device_name = Phase.FIRST, Kind.WARM, None, ""


def test_values_of_derived_classes_are_restored(tmp_path):
    one, two = training(agent_cls=Scheduled), training(agent_cls=Scheduled)
    last = {
        "phase": Phase.LAST,
        "kind": Kind.COLD,
        "rates": {Phase.FIRST: np.float32(0.25)},
        "device_name": np.str_("leg"),
    }
    vars(one.agent).update(last)
    take_snapshot(one).write(tmp_path)
    load_checkpoint(two, tmp_path)
    assert vars(two.agent).items() >= last.items()
    assert (two.agent.phase.name, two.agent.kind.name) == ("LAST", "COLD")


class Part:
    """Something of the user's with a state of its own, and an agent with it."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return {"kept": self.state}

    def load_state_dict(self, state):
        self.state = state["kept"]


class WithPart(CountingAgent):
    def __init__(self, state, **options):
        super().__init__(**options)
        self.part = Part(state)


@pytest.mark.parametrize(
    "state",
    [
        np.arange(3)[::-1],
        [np.array([True]), (np.array(0.5), torch.ones(2))],
        {1: np.ones((2, 0), np.float32)},
        np.float32(0.25),
        {1, 2},
    ],
    ids=str,
)
def test_what_a_state_dict_gives_is_restored_as_it_was(state, tmp_path):
    take_snapshot(training(agent_cls=partial(WithPart, state))).write(tmp_path)
    found = loaded(tmp_path, agent_cls=partial(WithPart, None)).agent.part.state
    assert str(found) == str(state)


class Named(enum.Enum):
    ONLY = "only"


@pytest.mark.parametrize(
    "state", [Named.ONLY, {Named.ONLY: 1}, np.longdouble(1), np.array([None]), lambda: 0]
)
def test_a_state_that_could_not_be_read_again_is_refused_in_the_first_checkpoint(state):
    with one_line(r"a state_dict holds .*; a checkpoint holds only numbers, text, tensors, arrays"):
        take_snapshot(training(agent_cls=partial(WithPart, state)))


class Composed(CountingAgent):
    """An agent with something that holds networks: its actor, or others."""

    def __init__(self, hold, **options):
        super().__init__(**options)
        self.nets = hold(self.actor)


@pytest.mark.parametrize(
    "hold",
    [
        lambda actor: SimpleNamespace(critic=torch.nn.Linear(1, 1)),
        lambda actor: {"critic": torch.nn.Linear(1, 1), "loss": abs},
    ],
)
def test_parameters_that_no_checkpoint_would_hold_are_refused_by_name(hold):
    with one_line(r"Composed\.nets is a .* with parameters that no checkpoint would hold: make"):
        take_snapshot(training(agent_cls=partial(Composed, hold)))


def test_parameters_that_something_shares_with_a_module_of_the_agents_are_in_its_checkpoints():
    def hold(actor):
        return SimpleNamespace(actor=actor)

    take_snapshot(training(agent_cls=partial(Composed, hold)))


class Holder:
    """Stands for an agent, with a value that its script gives and one that it learns."""

    def __init__(self, gamma, learnt):
        self.gamma, self.learnt = gamma, learnt


def restored(saved, current):
    """Return a holder of `current` after the state of one of `saved` was loaded into it."""
    holder = Holder(0.5, current)
    load_object_state(holder, object_state(Holder(0.9, saved)))
    return holder


@pytest.mark.parametrize(
    ("saved", "current", "expected"),
    [
        ([1.0, (2.0,)], None, [1.0, [2.0]]),
        *(
            (saved, current, saved)
            for saved, current in (
                ([torch.tensor(1.0)] * 2, []),
                ((1.0,), (3.0, 2.0, 1.0)),
                (Mean(0.5, 3), Mean(0.0, 0)),
                (OrderedDict(b=1.0, a=2.0), OrderedDict(a=0.0, b=0.0)),
                ([np.float64(0.5)], [0.0]),
                ([0.5], [np.int64(0)]),
                (np.array(0.5), np.array(0.0)),
            )
        ),
    ],
    ids=str,
)
def test_values_are_restored_with_their_types_and_arguments_are_the_new_script_s(
    saved, current, expected
):
    holder = restored(saved, current)
    assert (holder.gamma, repr(holder.learnt)) == (0.5, repr(expected))


class Recent(list):
    def __init__(self, *, limit):
        self.limit = limit


def test_a_list_of_a_class_of_its_own_is_filled():
    saved, current = Recent(limit=3), Recent(limit=5)
    saved += [1, 2]
    assert restored(saved, current).learnt is current
    assert (current, current.limit) == ([1, 2], 5)


@pytest.mark.parametrize(
    ("saved", "current", "match"),
    [
        ((1.0, 2.0, 3.0), Mean(0.0, 0), "2 arguments"),
        ([torch.nn.Linear(1, 1)] * 2, [torch.nn.Linear(1, 1)], "make it in __init__"),
    ],
)
def test_what_the_new_agent_has_no_place_for_is_refused(saved, current, match):
    with pytest.raises((TypeError, ValueError), match=match):
        restored(saved, current)


class WithoutSteps(CountingAgent):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        del self.steps


def test_the_checkpoint_of_another_agent_is_one_clear_line(tmp_path):
    saved(tmp_path, 1)
    refuse(tmp_path, "'steps'", agent_cls=WithoutSteps)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.fault(
    "disk", "a checkpoint is damaged", "the one before is taken, and one line says so"
)
def test_where_the_newest_checkpoint_is_damaged_the_one_before_is_taken(tmp_path, caplog):
    """tests/power/test_damage.py damages every byte."""
    saved(tmp_path, times=3)
    (tmp_path / "checkpoint-of-mine").touch()
    (tmp_path / "checkpoint-3").write_bytes(b"{}\n")
    before = names_in(tmp_path)
    assert read_newest(tmp_path).head.number == 2
    assert names_in(tmp_path) == before  # another process may own the folder
    take_snapshot(loaded(tmp_path)).write(tmp_path)
    assert ["going on from checkpoint 2" in line for line in caplog.messages] == [True] * 2
    kept = {"checkpoint-2", "checkpoint-3"}
    assert names_in(tmp_path) == kept | {"damaged-checkpoint-3", "checkpoint-of-mine"}
    for name in kept:
        (tmp_path / name).write_bytes(b"")
    refuse(tmp_path, "checkpoint 3 in .* is damaged .* there is no other one: move the folder away")


def test_a_checkpoint_of_another_format_is_one_clear_line_and_can_be_given_up(tmp_path):
    saved(tmp_path, 1)
    head, body = (tmp_path / "checkpoint-1").read_bytes().split(b"\n", 1)
    newer = msgspec.json.decode(head, type=Head)
    newer.format += 1
    newer.checksum = 0  # the other format may keep it elsewhere
    (tmp_path / "checkpoint-1").write_bytes(checked_json(newer) + b"\n" + body)
    refuse(tmp_path, f"has format {FORMAT + 1}, and this tmrl_like reads {FORMAT}")
    remove_checkpoints(tmp_path)
    assert load_checkpoint(training(), tmp_path) is None
    assert names_in(tmp_path) == set()


def test_what_is_given_up_part_by_part_is_the_newest_until_nothing_is_left(tmp_path, monkeypatch):
    saved(tmp_path, 3)
    left, remove = [], disk.remove
    monkeypatch.setattr(
        disk, "remove", lambda path: remove(path) or left.append(read_newest(tmp_path))
    )
    remove_checkpoints(tmp_path)
    assert [found and found.head.number for found in left] == [3, None]
