"""Mapping a safetensors file: what torch wrote comes back, what is damaged is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from spec_compile.errors import ArtifactError
from spec_compile.runtime.safetensors_file import map_safetensors


def write(path: Path, header: Any, body: bytes = bytes(16)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def test_every_type_comes_back(tmp_path: Path) -> None:
    kinds = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
    tensors = {kind: torch.arange(6).reshape(2, 3).to(getattr(torch, kind)) for kind in kinds}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4)}
    save_file(tensors, tmp_path / "f.safetensors", metadata={"who": "me"})
    found = map_safetensors(tmp_path / "f.safetensors")
    assert found.metadata == {"who": "me"}
    assert set(found.tensors) == set(tensors)
    for name, tensor in tensors.items():
        stored = found.tensors[name]
        assert (f"torch.{stored.dtype}", stored.shape) == (str(tensor.dtype), tuple(tensor.shape))
        assert stored.raw.tobytes() == tensor.flatten().view(torch.uint8).numpy().tobytes()


def test_writing_to_it_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    save_file({"x": torch.ones(4)}, path)
    before = path.read_bytes()
    map_safetensors(path).tensors["x"].raw[:] = 0
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "header,body",
    [
        (b"{", bytes(16)),
        (b"[]", bytes(16)),
        ({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, bytes(8)),
        ({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 16]}}, bytes(16)),
        ({"x": {"dtype": "F32", "shape": [-1, -4], "data_offsets": [0, 16]}}, bytes(16)),
        ({"x": {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]}}, bytes(16)),
        ({"x": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}}, bytes(16)),
        ({"x": {"dtype": "F32", "shape": [4]}}, bytes(16)),
        ({"x": 1}, bytes(16)),
    ],
)
def test_damage_is_one_line(tmp_path: Path, header: Any, body: bytes) -> None:
    with pytest.raises(ArtifactError, match="no sound safetensors file") as error:
        map_safetensors(write(tmp_path / "f.safetensors", header, body))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\x01", (2**62).to_bytes(8, "little") + b"{}"])
def test_no_file_of_this_kind(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(ArtifactError, match="no sound safetensors file"):
        map_safetensors(tmp_path / "f")
