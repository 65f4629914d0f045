"""Read a safetensors file by mapping it into memory: nothing is copied, and nothing is believed."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.errors import ArtifactError

_LONGEST_HEADER = 64 * 2**20
# Safetensors' name -> (name as in the manifest, bytes of an element).
_DTYPES: Mapping[str, tuple[str, int]] = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "I16": ("int16", 2),
    "I32": ("int32", 4),
    "I64": ("int64", 8),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of the file.

    Args:
        raw: its bytes, in the mapped file; writing to them changes this process's memory alone.
        dtype: name as in the manifest.
        shape: all sizes.
    """

    raw: NDArray[np.uint8]
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SafetensorsFile:
    """A mapped file: its tensors and its metadata, by name."""

    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]


def map_safetensors(path: Path) -> SafetensorsFile:
    """Map `path`.

    Raises:
        ArtifactError: it is damaged.
    """
    try:
        with path.open("rb") as file:
            data = np.frombuffer(
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=np.uint8
            )
        length = int.from_bytes(data[:8].tobytes(), "little")
        if not 0 < length <= min(_LONGEST_HEADER, len(data) - 8):
            raise ValueError("its header does not fit")
        header = json.loads(data[8 : 8 + length].tobytes())
        metadata = header.pop("__metadata__", {})
        body = data[8 + length :]
        tensors = {name: _tensor(body, entry) for name, entry in header.items()}
        return SafetensorsFile(tensors, {str(key): str(v) for key, v in metadata.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path}: is no sound safetensors file: {error}") from error


def _tensor(body: NDArray[np.uint8], entry: Any) -> StoredTensor:
    dtype, size = _DTYPES[entry["dtype"]]
    shape = tuple(int(length) for length in entry["shape"])
    start, end = (int(place) for place in entry["data_offsets"])
    wanted = size * math.prod(shape)
    if min(shape, default=0) < 0 or not 0 <= start <= end <= len(body) or end - start != wanted:
        raise ValueError(f"a tensor of shape {list(shape)} does not fit its place")
    return StoredTensor(body[start:end], dtype, shape)
