"""What a manifest says of graphs and files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from spec_compile.manifest import MANIFEST_FILE, FileSpec, GraphSpec, TensorSpec
from spec_compile.program import Graph, Program
from spec_compile.program import TensorSpec as ProgramTensor

_CHUNK = 1 << 20


def describe_graphs(program: Program, files: Mapping[str, str]) -> dict[str, GraphSpec]:
    """The tensor tables of `program` in the manifest's terms."""
    return {name: _graph_spec(graph, files[name]) for name, graph in program.graphs.items()}


def describe_files(folder: Path) -> dict[str, FileSpec]:
    """Size and SHA-256 of every file in `folder`, the manifest left out."""
    return {
        path.relative_to(folder).as_posix(): FileSpec(_sha256(path), path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST_FILE
    }


def _graph_spec(graph: Graph, file: str) -> GraphSpec:
    return GraphSpec(
        file, tuple(map(_tensor_spec, graph.inputs)), tuple(map(_tensor_spec, graph.outputs))
    )


def _tensor_spec(spec: ProgramTensor) -> TensorSpec:
    return TensorSpec(spec.name, str(spec.dtype).removeprefix("torch."), spec.shape, spec.alias_of)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
