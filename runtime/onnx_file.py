"""A small reader of ONNX files: which operators, which external data (standard library only).

An ONNX file is a protocol-buffer message. Only the few fields on the way to operator names and to
external-data locations are followed; everything else is skipped by its length.
"""

from __future__ import annotations

import mmap
import posixpath
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spec_compile.errors import ArtifactError

# Message -> field number -> message of that field, for the fields of onnx.proto that are followed.
_FOLLOWED = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external"},
}
_OP_TYPE, _DOMAIN = 4, 7
_KEY, _VALUE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass
class OnnxSummary:
    """What an ONNX file holds.

    Args:
        op_counts: operator (`domain::name` outside the standard domain) -> nodes, with
            those of subgraphs.
        external_files: locations of external data, relative to the ONNX file's folder.
    """

    op_counts: Counter[str] = field(default_factory=Counter)
    external_files: set[str] = field(default_factory=set)


def read_onnx(path: Path) -> OnnxSummary:
    """Summarise an ONNX file without loading its weights.

    Raises:
        ArtifactError: the file is cut off or no ONNX file.
    """
    summary = OnnxSummary()
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ValueError("empty file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                _walk(mapped, 0, len(mapped), "model", summary)
    except (ValueError, IndexError, RecursionError) as error:
        raise ArtifactError(f"{path}: is not a whole ONNX file; export the bundle again") from error
    return summary


def check_external_files(path: Path, name: str, listed: frozenset[str]) -> None:
    """Refuse an ONNX file that reads files which the manifest does not list.

    Args:
        path: the ONNX file.
        name: its name in the bundle; external data is relative to its folder.
        listed: every file that the manifest lists.

    Raises:
        ArtifactError: unlisted external data, or no whole ONNX file.
    """
    for location in sorted(read_onnx(path).external_files):
        if posixpath.join(posixpath.dirname(name), location) not in listed:
            raise ArtifactError(
                f"{path}: reads {location!r}, which the manifest does not list; refused"
            )


def _walk(data: mmap.mmap, start: int, end: int, kind: str, summary: OnnxSummary) -> None:
    followed = _FOLLOWED[kind]
    texts: dict[int, str] = {}
    for number, begin, stop in _length_fields(data, start, end):
        child = followed.get(number)
        if child == "external":
            _read_external(data, begin, stop, summary)
        elif child is not None:
            _walk(data, begin, stop, child, summary)
        elif kind == "node" and number in (_OP_TYPE, _DOMAIN):
            texts[number] = data[begin:stop].decode()
    if kind == "node":
        domain = texts.get(_DOMAIN, "")
        name = texts.get(_OP_TYPE, "")
        summary.op_counts[f"{domain}::{name}" if domain not in ("", "ai.onnx") else name] += 1


def _read_external(data: mmap.mmap, start: int, end: int, summary: OnnxSummary) -> None:
    entry = {n: data[begin:stop].decode() for n, begin, stop in _length_fields(data, start, end)}
    if entry.get(_KEY) == "location":
        summary.external_files.add(entry.get(_VALUE, ""))


def _length_fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of each length-delimited field; other fields are skipped."""
    position = start
    while position < end:
        key, position = _varint(data, position)
        if key >> 32:  # other readers drop these bits, and would see another field
            raise ValueError("field number too large")
        wire_type = key & 7
        if wire_type == _BYTES:
            length, position = _varint(data, position)
            if position + length > end:
                raise ValueError("field runs over its message")
            yield key >> 3, position, position + length
            position += length
        elif wire_type == _VARINT:
            _, position = _varint(data, position)
        elif wire_type in (_FIXED32, _FIXED64):
            position += 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError("unknown wire type")
    if position != end:
        raise ValueError("message is cut off")


def _varint(data: mmap.mmap, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("number too long")
