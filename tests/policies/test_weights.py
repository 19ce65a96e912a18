"""Weights as safetensors: whole or refused, and never copied under the interpreter lock."""

import json

import pytest
import safetensors.torch
import torch

from tmrl_like.errors import PolicyError
from tmrl_like.policies.weights import WeightsCopy, form_of, parse_weights

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
TENSORS = {str(d): torch.arange(6).reshape(2, 3).to(d) for d in DTYPES} | {
    "empty": torch.empty(0, 3),
    "one": torch.tensor(2.0),
}


def file_of(tensors: dict[str, torch.Tensor]) -> bytes:
    copy = WeightsCopy(form_of(tensors))
    copy.fill(tensors)
    return bytes(copy.file)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[k].dtype == other[k].dtype and torch.equal(one[k], other[k]) for k in one
    )


def test_every_dtype_and_shape_comes_back() -> None:
    assert same(parse_weights(file_of(TENSORS)), TENSORS)
    assert parse_weights(file_of({})) == {}


def test_the_library_reads_what_is_written_and_what_it_writes_is_read() -> None:
    assert same(safetensors.torch.load(file_of(TENSORS)), TENSORS)
    assert same(parse_weights(safetensors.torch.save(TENSORS, {"made by": "the library"})), TENSORS)


def test_a_copy_is_filled_again_in_the_same_memory_whatever_the_tensors_strides() -> None:
    strided = {name: (t.T.contiguous().T if t.dim() == 2 else t).clone() for name, t in TENSORS.items()}
    copy = WeightsCopy(form_of(TENSORS))
    for tensors in ({name: torch.zeros_like(t) for name, t in TENSORS.items()}, strided):
        copy.fill(tensors)
        copy.wait()
        assert same(parse_weights(copy.file), tensors)


def test_a_copy_from_a_gpu_is_queued_and_whoever_reads_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    empty, foreach_copy, done = torch.empty, torch._foreach_copy_, []

    class Stream:
        def record_event(self) -> "Stream":
            done.append("recorded")
            return self

        def synchronize(self) -> None:
            done.append("waited for")

    def copy_later(own: object, others: object, non_blocking: bool) -> None:
        done.append(f"{non_blocking=}")
        foreach_copy(own, others)

    monkeypatch.setattr(
        torch, "empty", lambda *shape, pin_memory, **of: done.append(f"{pin_memory=}") or empty(*shape, **of)
    )
    monkeypatch.setattr(torch, "_foreach_copy_", copy_later)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda gpu: Stream())
    one = {"w": torch.ones(3)}
    copy = WeightsCopy([("w", one["w"].shape, torch.float32, torch.device("cuda:0"))])
    copy.fill(one)
    assert done == ["pin_memory=True", "non_blocking=True", "recorded"]
    copy.wait()
    assert done[3:] == ["waited for"]
    assert same(copy.tensors, one)
    del copy
    assert done[3:] == ["waited for"] * 2


def test_tensors_are_views_where_the_memory_may_be_written_to() -> None:
    memory = bytearray(file_of({"w": torch.zeros(4)}))
    tensor = parse_weights(memory)["w"]
    memory[-4:] = b"\0\0\x80\x3f"
    assert tensor.tolist() == [0.0, 0.0, 0.0, 1.0]


def entry(start: int, end: int, **other: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [start, end], **other}


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ({"a": entry(0, 8), "b": entry(4, 12)}, 12),
        ({"a": entry(0, 8), "b": entry(12, 20)}, 20),
        ({"a": entry(4, 12)}, 12),
        ({"a": entry(0, 8)}, 12),
        ({"a": entry(0, 8)}, 7),
        ({"a": entry(0, 4)}, 4),
        ({"a": entry(8, 0)}, 8),
        ({"a": entry(0, 8, shape=[-1, -2])}, 8),
        ({"a": entry(0, 8, shape=[True, 2])}, 8),
        ({"a": entry(0, 8, shape=[2**70])}, 8),
        ({"a": entry(0, 8, shape="2")}, 8),
        ({"a": entry(0, 8, dtype="F33")}, 8),
        ({"a": entry(0, 8, dtype=["F32"])}, 8),
        ({"a": entry(0, 8, data_offsets=[0, 8, 9])}, 8),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8),
        ({"a": entry(0, 8, more=1)}, 8),
        ({"a": [0, 8]}, 8),
        (["a"], 0),
        ("[" * 100_000, 0),
        ("{", 0),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(header: object, body: int) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    with pytest.raises(PolicyError, match="not a safetensors file"):
        parse_weights(len(text).to_bytes(8, "little") + text + bytes(body))


@pytest.mark.parametrize(
    "data", [b"", b"1234567", (2**63).to_bytes(8, "little"), b"\x02" + bytes(7) + b"\xff\xff", b"\0" * 8]
)
def test_what_is_not_a_weights_file_is_refused(data: bytes) -> None:
    with pytest.raises(PolicyError, match="not a safetensors file"):
        parse_weights(data)


@pytest.mark.fault("disk", "a file of weights is cut or changed", "it is refused in one line")
def test_cutting_or_changing_a_file_anywhere_raises_nothing_else_than_a_policy_error() -> None:
    whole = file_of({"a": torch.zeros(3), "b": torch.ones(2, dtype=torch.int8)})
    for i in range(len(whole)):
        for damaged in (whole[:i], whole[:i] + b"\x7f" + whole[i + 1 :]):
            try:
                parse_weights(damaged)
            except PolicyError:
                pass
