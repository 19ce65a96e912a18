"""Weights in a safetensors file are read completely or refused."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from test_weights import EXACTLY, TENSORS, weights_of
from torch.testing import assert_close

from tmrl_like.errors import DamagedPolicyError
from tmrl_like.policies.weight_file import read_card_text, read_weights, write_weights
from tmrl_like.policies.weights import tensors_of


def test_the_library_reads_what_is_written_and_what_it_writes_is_read(tmp_path):
    path = tmp_path / "p"
    for tensors in ({}, TENSORS):
        write_weights(path, weights_of(tensors), "what it is")
        assert read_weights(path) == ("what it is", weights_of(tensors))
        assert read_card_text(path) == "what it is"
    assert_close(safetensors.torch.load_file(path), TENSORS, **EXACTLY)
    safetensors.torch.save_file(TENSORS, path, {"made by": "the library"})
    card, weights = read_weights(path)
    assert card == ""
    assert_close(tensors_of(weights), TENSORS, **EXACTLY)


def test_parameters_without_numbers_are_not_taken_for_damage(tmp_path):
    """The library gives those that lie at one place in any order, another one each time."""
    tensors = {name: torch.ones(n) for name, n in zip("edcba", (0, 0, 2, 0, 0), strict=True)}
    write_weights(tmp_path / "p", weights_of(tensors))
    for _ in range(20):
        assert_close(tensors_of(read_weights(tmp_path / "p")[1]), tensors, **EXACTLY)


def test_a_file_that_another_one_replaces_is_read_whole(tmp_path, monkeypatch):
    path, opened = tmp_path / "p", Path.open
    other = weights_of({name: tensor + 1 for name, tensor in TENSORS.items()})
    write_weights(path, weights_of(TENSORS), "one")

    def replaced(self, *mode):
        file = opened(self, *mode)
        monkeypatch.undo()
        write_weights(path, other, "other")
        return file

    monkeypatch.setattr(Path, "open", replaced)
    assert read_weights(path) == ("other", other)


def with_header(header, body=0):
    """Return a file with this header, and zeros as its body."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + bytes(body)


def entry(start, end, **other):
    return {"dtype": "F32", "shape": [2], "data_offsets": [start, end], **other}


@pytest.mark.parametrize(
    "data",
    [
        with_header({"a": entry(0, 8), "b": entry(4, 12)}, 12),
        with_header({"a": entry(0, 8, shape=[2**70])}, 8),
        with_header({"a": entry(0, 8, dtype="U64", shape=[1])}, 8),
        with_header({"__metadata__": {"tmrl_like": 3}}),
        with_header("[" * 100_000),
        (2**63).to_bytes(8, "little"),
    ],
)
def test_what_is_not_a_weights_file_is_refused(data, tmp_path):
    (tmp_path / "p").write_bytes(data)
    for read in (read_weights, read_card_text):
        with pytest.raises(DamagedPolicyError, match="p is not a safetensors file"):
            read(tmp_path / "p")


@pytest.mark.fault("disk", "a file of weights is cut or changed", "it is refused in one line")
def test_a_file_that_is_cut_or_changed_anywhere_is_refused_or_as_it_was(tmp_path):
    path, tensors = tmp_path / "p", {"a": TENSORS["torch.float32"], "b": TENSORS["torch.int8"]}
    write_weights(path, weights_of(tensors), "what it is")
    whole, refused = path.read_bytes(), 0
    for i in range(len(whole)):
        for damaged in (whole[:i], whole[:i] + b"\x7f" + whole[i + 1 :]):
            path.write_bytes(damaged)
            try:
                assert read_weights(path) == ("what it is", weights_of(tensors))
            except DamagedPolicyError as error:
                refused += "\n" not in str(error)
    assert refused > 1.8 * len(whole)
