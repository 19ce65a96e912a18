"""Weights in memory: their types, whether they fit and are finite, and how they are copied."""

import gc
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.testing import assert_close

from tmrl_like.errors import PolicyError
from tmrl_like.policies.weight_file import Weights, refuse_misfit, refuse_not_finite
from tmrl_like.policies.weights import WeightsCopy, copied, tensors_of

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
TENSORS = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES}
EXACTLY = {"rtol": 0.0, "atol": 0.0}
TENSORS |= {"empty": torch.empty(0, 3), "one": torch.tensor(2.0)}


def weights_of(tensors):
    manifest, data = copied(tensors).content
    return Weights(manifest, bytes(data))


def test_a_dtype_that_no_file_knows_is_refused_by_name_and_nothing_else_is_said(monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with pytest.raises(
        PolicyError, match=r"w has dtype torch.complex64, which weights cannot have"
    ):
        copied({"w": torch.zeros(1, dtype=torch.complex64)})
    gc.collect()
    assert not said


def test_a_copy_is_filled_again_in_the_same_memory_whatever_the_tensors_strides():
    copy = WeightsCopy(TENSORS)
    zeros = {n: torch.zeros_like(t) for n, t in TENSORS.items()}
    strided = {n: t.T.contiguous().T if t.dim() == 2 else t for n, t in TENSORS.items()}
    for tensors in (zeros, strided):
        copy.fill(tensors)
        copy.wait()
        assert_close(tensors_of(copy.content), tensors, **EXACTLY)


def test_a_copy_from_a_gpu_is_queued_and_whoever_reads_it_waits(monkeypatch):
    event, stream, empty = Mock(), Mock(), torch.empty
    stream.record_event.return_value = event
    locked = Mock(side_effect=lambda *shape, pin_memory, **of: empty(*shape, **of))
    monkeypatch.setattr(torch, "empty", locked)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda gpu: stream)
    one = {"w": torch.ones(3)}
    on_gpu = {"w": SimpleNamespace(shape=(3,), dtype=torch.float32, device=torch.device("cuda:0"))}
    copy = WeightsCopy(on_gpu)
    assert locked.call_args.kwargs["pin_memory"]
    assert (copy.fits(on_gpu), copy.fits(one)) == (True, False)
    copy.fill(one)
    event.synchronize.assert_not_called()
    copy.wait()
    event.synchronize.assert_called_once()
    assert_close(copy.tensors, one, **EXACTLY)
    del copy
    assert event.synchronize.call_count == 2


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_parameter_that_is_not_finite_is_named(dtype, bad):
    large = torch.full((3, 100), torch.finfo(dtype).max, dtype=dtype)
    tensors = {"a": torch.ones(3, dtype=torch.int32), "b": large, "c": large.clone(), "d": -large}
    refuse_not_finite(weights_of(tensors))
    tensors["c"][1, 50] = bad
    with pytest.raises(PolicyError, match="c holds values that are not finite"):
        refuse_not_finite(weights_of(tensors))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"b": None, "c": ("F32", (2,))}, "missing b; unknown c"),
        ({"w": ("F64", (3, 2))}, r"w is \(3, 2\) instead of \(2, 3\)"),
        ({"b": ("BF16", (2,))}, "b is bfloat16 instead of float32"),
    ],
)
def test_what_does_not_fit_is_said(change, reason):
    own = {"w": ("F32", (2, 3)), "b": ("F32", (2,))}
    refuse_misfit("Walker", own, dict(reversed(own.items())))
    other = {name: entry for name, entry in (own | change).items() if entry}
    with pytest.raises(PolicyError, match=f"weights do not fit Walker: {reason}; they are of an"):
        refuse_misfit("Walker", own, other)
