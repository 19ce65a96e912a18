"""Partial functions."""

import pytest

from tmrl_like.base.functional import partial, prod
from tmrl_like.trainer.pacing import Pacer


def test_a_partial_takes_missing_keywords_later_and_nests():
    outer = partial(lambda make, b: {**make(), "b": b}, make=partial(dict, a=1))
    assert outer(b=prod((2, 3))) == {"a": 1, "b": 6}


def test_a_misspelt_keyword_fails_where_it_is_written():
    with pytest.raises(TypeError, match="no argument 'maxlength'; it takes"):
        partial(Pacer, maxlength=3)
