"""Sizes come from headers, and a broken file is told."""

import json
import struct
from pathlib import Path

import pytest

from serving.capacity.safetensors_header import folder_weight_bytes, weight_bytes
from serving.errors import InputError


def write(path: Path, tensors: dict[str, tuple[str, list[int], int]], cut: int = 0) -> Path:
    """A file with tensors of type, shape and size in bytes; `cut` bytes are left out at the end."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (kind, shape, size) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at - cut))
    return path


def test_bytes_are_those_of_the_tensors(tmp_path: Path) -> None:
    tensors = {"a": ("BF16", [4, 8], 64), "b": ("F8_E4M3", [10], 10), "c": ("F4", [3], 2)}
    assert weight_bytes(write(tmp_path / "x.safetensors", tensors)) == 76
    assert weight_bytes(write(tmp_path / "empty.safetensors", {})) == 0


@pytest.mark.parametrize(
    "tensors", [{"a": ("BF16", [4], 9)}, {"a": ("ODD", [4], 8)}, {"a": ("BF16", [-4], 8)}]
)
def test_a_header_that_cannot_be_is_refused(
    tmp_path: Path, tensors: dict[str, tuple[str, list[int], int]]
) -> None:
    with pytest.raises(InputError, match="is no whole safetensors file"):
        weight_bytes(write(tmp_path / "x.safetensors", tensors))


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"a": ("BF16", [4], 8)}, cut=1)
    with pytest.raises(InputError, match="tensors take 8 bytes, and 7 are in it; fetch it again"):
        weight_bytes(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"1234", struct.pack("<Q", 2**60), struct.pack("<Q", 2) + b"[]", b"\x80\x04" * 20],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError):
        weight_bytes(path)


def test_a_folder_counts_all_its_files_and_believes_an_index_without_them(tmp_path: Path) -> None:
    assert folder_weight_bytes(tmp_path) is None
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {"total_size": 16060522496}, "weight_map": {}}')
    assert folder_weight_bytes(tmp_path) == 16_060_522_496
    for name in ("a", "b"):
        write(tmp_path / f"{name}.safetensors", {"a": ("F32", [2], 8)})
    assert folder_weight_bytes(tmp_path) == 16


@pytest.mark.parametrize("content", ["", "{}", '{"metadata": {"total_size": "big"}}', "[]"])
def test_an_index_that_states_no_size_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(InputError, match="states no metadata"):
        folder_weight_bytes(tmp_path)
