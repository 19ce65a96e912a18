"""Policy files and their cards."""

import functools
from dataclasses import dataclass

import numpy as np
import pytest
from kit.boxes import box
from kit.fakes import LinearActor

from tmrl_like.errors import PolicyError
from tmrl_like.policies.policy_file import Code, describe, read_card
from tmrl_like.policies.weight_file import write_weights

SPACES = box(1, 3), box(1, 2)


def doubled(obs):
    return 2 * obs


@dataclass(frozen=True)
class Scaled:
    by: float = 1.0

    def __call__(self, obs):
        return self.by * obs

    def back(self, obs):
        return obs / self.by

    @classmethod
    def of_one(cls, obs):
        return cls()(obs)


class Doubled(Scaled):
    by = 2.0


class Undocumented:
    def __init__(self, by):
        self._by = by

    def __call__(self, obs):
        return self._by * obs


class Picky(LinearActor):
    def __init__(self, observation_space, action_space, table=None, act=None):
        super().__init__(observation_space, action_space)


@pytest.mark.parametrize(
    ("preprocessor", "said"),
    [
        (None, None),
        (doubled, Code(f"{__name__}.doubled")),
        (functools.partial(Scaled, 2.0), Code(f"{__name__}.Scaled", {"by": 2.0})),
        (Scaled(3.0), Code(f"{__name__}.Scaled", {"by": 3.0})),
        (lambda obs: obs, "has no import path: define it at the top of a module"),
        (
            Scaled(2.0).back,
            "is an object's method: use a function, a partial of one or a dataclass",
        ),
        (Doubled.of_one, Code(f"{__name__}.Doubled.of_one")),
        (Undocumented(2.0), "was made: use a function, a partial of one or a dataclass"),
    ],
)
def test_a_preprocessor_is_named_by_its_path_where_that_says_all(preprocessor, said):
    found = describe(LinearActor(*SPACES), preprocessor).obs_preprocessor
    assert found == said or found.endswith(said)


def test_arguments_are_written_as_an_experiment_has_them():
    actor = Picky(*SPACES, {"a": (1, np.float32(0.5))}, act=functools.partial(Scaled, by=2.0))
    path = f"{__name__}.Scaled"
    assert describe(actor).actor == Code(
        f"{__name__}.Picky",
        {"table": {"a": [1, 0.5]}, "act": {"class_path": path, "init_args": {"by": 2.0}}},
    )


@pytest.mark.parametrize("value", [np.zeros(2), float("inf"), {1: 2}, Scaled(2.0)])
def test_an_argument_that_no_text_says_is_named(value):
    assert describe(Picky(*SPACES, table=value)).actor.startswith("its argument table is ")


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (
            '{"format": 2, "all": "else"}',
            "has the format 2, this tmrl_like reads 1: upgrade tmrl_like",
        ),
        (
            '{"format": 1}',
            "does not say what it is in a way that can be read: .*required field `actor`",
        ),
        ("[" * 100_000, "does not say what it is in a way that can be read"),
    ],
)
def test_a_file_that_says_something_else_is_refused(card, message, tmp_path):
    write_weights(tmp_path / "p", LinearActor(*SPACES).weights(), card)
    with pytest.raises(PolicyError, match=message):
        read_card(tmp_path / "p")
