"""Weights in memory: what they are, whether they fit, whether they are finite, and how they are
copied.
"""

from types import SimpleNamespace

import pytest
import torch

from tmrl_like.errors import PolicyError
from tmrl_like.policies.weight_file import Weights, refuse_misfit, refuse_not_finite
from tmrl_like.policies.weights import WeightsCopy, copied, manifest_of, tensors_of

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
TENSORS = {str(d): torch.arange(6).reshape(2, 3).to(d) for d in DTYPES} | {
    "empty": torch.empty(0, 3),
    "one": torch.tensor(2.0),
}
FLOATS = DTYPES[:4]


def weights_of(tensors):
    manifest, data = copied(tensors).content
    return Weights(manifest, bytes(data))


def same(one, other):
    return one.keys() == other.keys() and all(
        one[k].dtype == other[k].dtype and torch.equal(one[k], other[k]) for k in one
    )


def test_every_dtype_and_shape_comes_back():
    assert same(tensors_of(weights_of(TENSORS)), TENSORS)
    assert tensors_of(weights_of({})) == {}


def test_a_dtype_that_no_file_knows_is_refused_by_name():
    with pytest.raises(
        PolicyError, match=r"w has dtype torch.complex64, which weights cannot have"
    ):
        manifest_of({"w": torch.zeros(1, dtype=torch.complex64)})


def test_every_dtype_is_read_without_a_copy():
    memory = memoryview(bytearray(weights_of(TENSORS).data))
    weights = Weights(weights_of(TENSORS).manifest, memory)
    for name, tensor in TENSORS.items():
        plain = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        assert weights.arrays()[name].tolist() == plain.tolist()
    array, tensor = weights.arrays()["torch.float64"], tensors_of(weights)["torch.float64"]
    memory[:] = bytes(len(memory))
    assert not array.any()
    assert not tensor.any()


def test_a_copy_is_filled_again_in_the_same_memory_whatever_the_tensors_strides():
    strided = {
        name: (t.T.contiguous().T if t.dim() == 2 else t).clone() for name, t in TENSORS.items()
    }
    copy = WeightsCopy(TENSORS)
    for tensors in ({name: torch.zeros_like(t) for name, t in TENSORS.items()}, strided):
        copy.fill(tensors)
        copy.wait()
        assert same(tensors_of(copy.content), tensors)


def test_a_copy_from_a_gpu_is_queued_and_whoever_reads_it_waits(monkeypatch):
    empty, foreach_copy, done = torch.empty, torch._foreach_copy_, []

    class Stream:
        def record_event(self):
            done.append("recorded")
            return self

        def synchronize(self):
            done.append("waited for")

    def copy_later(own, others, non_blocking):
        done.append(f"{non_blocking=}")
        foreach_copy(own, others)

    monkeypatch.setattr(
        torch,
        "empty",
        lambda *shape, pin_memory, **of: done.append(f"{pin_memory=}") or empty(*shape, **of),
    )
    monkeypatch.setattr(torch, "_foreach_copy_", copy_later)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda gpu: Stream())
    one = {"w": torch.ones(3)}
    on_gpu = {"w": SimpleNamespace(shape=(3,), dtype=torch.float32, device=torch.device("cuda:0"))}
    copy = WeightsCopy(on_gpu)
    assert copy.fits(on_gpu)
    assert not copy.fits(one)
    copy.fill(one)
    assert done == ["pin_memory=True", "non_blocking=True", "recorded"]
    copy.wait()
    assert done[3:] == ["waited for"]
    assert same(copy.tensors, one)
    del copy
    assert done[3:] == ["waited for"] * 2


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_parameter_that_is_not_finite_is_named(dtype, bad):
    large = torch.full((3, 100), torch.finfo(dtype).max, dtype=dtype)
    tensors = {"a": torch.ones(3, dtype=torch.int32), "b": large, "c": large.clone(), "d": -large}
    refuse_not_finite(weights_of(tensors))
    tensors["c"][1, 50] = bad
    with pytest.raises(PolicyError, match="c holds values that are not finite"):
        refuse_not_finite(weights_of(tensors))


def test_what_does_not_fit_is_said():
    own = {"w": ("F32", (2, 3)), "b": ("F32", (2,))}
    refuse_misfit("Walker", own, dict(reversed(own.items())))
    for reason, other in {
        "missing b; unknown c, d": {"w": own["w"], "c": own["b"], "d": own["b"]},
        "w is (3, 2) instead of (2, 3)": own | {"w": ("F64", (3, 2))},
        "b is bfloat16 instead of float32": own | {"b": ("BF16", (2,))},
    }.items():
        with pytest.raises(PolicyError) as caught:
            refuse_misfit("Walker", own, other)
        expected = (
            f"weights do not fit Walker: {reason}; they are of another environment, actor class or"
        )
        assert str(caught.value).startswith(expected)
