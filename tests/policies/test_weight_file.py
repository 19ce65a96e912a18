"""Weights without torch: what a file holds, whether it fits, and whether it is finite."""

import pytest
import torch
from test_weights import DTYPES, TENSORS, file_of

from tmrl_like.errors import PolicyError
from tmrl_like.policies.weight_file import first_not_finite, layout_of, manifest_of, read_file, refuse_misfit
from tmrl_like.policies.weights import manifest_of_tensors

FLOATS = DTYPES[:4]


def test_every_dtype_is_read_without_a_copy():
    data = bytearray(file_of(TENSORS))
    read = read_file(data)
    assert manifest_of(read) == manifest_of_tensors(TENSORS)
    for name, tensor in TENSORS.items():
        plain = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        assert read[name].array().tolist() == plain.tolist()
    view = read["torch.float64"].array()
    size = sum(tensor.nbytes for tensor in TENSORS.values())
    data[-size:] = bytes(size)
    assert not view.any()


def test_a_layout_is_that_of_the_file():
    data = file_of(TENSORS)
    read = read_file(data)
    header, size = layout_of(manifest_of(read))
    assert b"".join((header, *(parameter.data for parameter in read.values()))) == data
    assert size == len(data)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_parameter_that_is_not_finite_is_named(dtype, bad):
    large = torch.full((3, 100), torch.finfo(dtype).max, dtype=dtype)
    tensors = {"a": torch.ones(3, dtype=torch.int32), "b": large, "c": large.clone(), "d": -large}
    assert first_not_finite(read_file(file_of(tensors))) == ""
    tensors["c"][1, 50] = bad
    assert first_not_finite(read_file(file_of(tensors))) == "c"


def test_what_does_not_fit_is_said():
    own = {"w": ("F32", (2, 3)), "b": ("F32", (2,))}
    refuse_misfit("Walker", own, dict(own))
    for reason, other in {
        "missing b; unknown c, d": {"w": own["w"], "c": own["b"], "d": own["b"]},
        "w is (3, 2) instead of (2, 3)": own | {"w": ("F64", (3, 2))},
        "b is bfloat16 instead of float32": own | {"b": ("BF16", (2,))},
    }.items():
        with pytest.raises(PolicyError) as caught:
            refuse_misfit("Walker", own, other)
        expected = f"weights do not fit Walker: {reason}; they are of another environment, actor class or"
        assert str(caught.value).startswith(expected)
