"""Partial functions and cached properties."""

from copy import deepcopy

import pytest

from tmrl_like.base.functional import cached_property, partial, prod
from tmrl_like.trainer.pacing import Pacer


def test_a_partial_takes_missing_keywords_later_and_nests():
    outer = partial(lambda make, b: {**make(), "b": b}, make=partial(dict, a=1))
    assert outer(b=prod((2, 3))) == {"a": 1, "b": 6}


def test_a_misspelt_keyword_fails_where_it_is_written():
    with pytest.raises(TypeError, match="no argument 'maxlength'; it takes"):
        partial(Pacer, maxlength=3)


def test_a_cached_property_is_computed_once_per_instance_and_not_copied():
    class Holder:
        calls = 0
        value = cached_property(lambda self: Holder.count())

        @staticmethod
        def count():
            Holder.calls += 1
            return Holder.calls

    one, two = Holder(), Holder()
    assert one.value == one.value == 1
    assert two.value == 2
    assert deepcopy(one).value == 3
    assert "value" not in vars(one)
