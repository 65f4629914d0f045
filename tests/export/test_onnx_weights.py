"""Weights of a bundle's ONNX files: each one stored once, and as it is in the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.export.conftest import OnnxPair
from tests.helpers.tiny_models import VOCAB_SIZE

LARGE = 1024


@dataclass(frozen=True)
class Stored:
    """Where a graph says that a weight is."""

    graph: str
    name: str
    file: str
    offset: int
    value: NDArray[np.float32]


def stored_weights(folder: Path) -> Iterator[Stored]:
    """External weights of every graph in `folder`."""
    for path in sorted(folder.glob("*.onnx")):
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            if not tensor.external_data:
                continue
            where = {entry.key: entry.value for entry in tensor.external_data}
            value = numpy_helper.to_array(tensor, base_dir=str(folder))
            yield Stored(
                path.stem, tensor.name, where["location"], int(where.get("offset", 0)), value
            )


def test_graphs_share_every_weight(onnx_pair: OnnxPair) -> None:
    places: dict[str, set[tuple[str, int]]] = {}
    graphs: dict[str, set[str]] = {}
    for each in stored_weights(onnx_pair.folder):
        places.setdefault(each.name, set()).add((each.file, each.offset))
        graphs.setdefault(each.name, set()).add(each.graph)
    assert all(len(found) == 1 for found in places.values())
    assert len(set().union(*places.values())) == len(places)
    owners = {"target": {"verify", "target"}, "draft": {"draft"}}
    assert all(found == owners[name.split(".")[0]] for name, found in graphs.items())


def test_every_large_weight_is_stored_as_it_is_in_the_model(onnx_pair: OnnxPair) -> None:
    for owner, model in onnx_pair.models.items():
        stored = {
            each.name.removeprefix(f"{owner}."): each.value
            for each in stored_weights(onnx_pair.folder)
            if each.name.startswith(f"{owner}.")
        }
        large = {n: w for n, w in model.named_parameters() if w.nbytes > LARGE}
        parts = {name: packed_names(name.removesuffix(".T")) for name in stored}
        assert sorted(part for each in parts.values() for part in each) == sorted(large)
        for name, value in stored.items():
            weight = np.concatenate([large[part].numpy() for part in parts[name]])
            np.testing.assert_array_equal(value, weight.T if name.endswith(".T") else weight)


def packed_names(name: str) -> list[str]:
    """The weights that a packed one holds, from top to bottom: `a.q+k.weight`."""
    before, _, last = name.rpartition(".")
    module, _, packed = before.rpartition(".")
    return [f"{module}.{each}.{last}" for each in packed.split("+")] if "+" in name else [name]


def test_a_tied_head_is_the_embedding(onnx_pair: OnnxPair) -> None:
    names = {each.name.removesuffix(".T") for each in stored_weights(onnx_pair.folder)}
    tables = sorted(name for name in names if "embed" in name or "head" in name)
    assert tables == [
        "draft.lm_head.weight",
        "draft.model.embed_tokens.weight",
        "target.model.embed_tokens.weight",
    ]


def test_files_hold_the_weights_and_little_else(onnx_pair: OnnxPair) -> None:
    folder = onnx_pair.folder
    names = {path.name for path in folder.iterdir()}
    graphs = {f"{name}.onnx" for name in onnx_pair.program.graphs}
    assert names == graphs | {"target.weights", "draft.weights"}
    for owner, model in onnx_pair.models.items():
        large = [weight.nbytes for weight in model.parameters() if weight.nbytes > LARGE]
        padded = sum(-(-size // 4096) * 4096 for size in large)
        assert sum(large) <= (folder / f"{owner}.weights").stat().st_size <= padded


def test_matrix_products_read_weights_without_transposing_them(onnx_pair: OnnxPair) -> None:
    for name in onnx_pair.program.graphs:
        graph = onnx.load(onnx_pair.folder / f"{name}.onnx", load_external_data=False).graph
        weights = {tensor.name for tensor in graph.initializer}
        transposed = [
            n.name for n in graph.node if n.op_type == "Transpose" and n.input[0] in weights
        ]
        assert transposed == []


def test_no_path_leaves_the_folder(onnx_pair: OnnxPair) -> None:
    files = {each.file for each in stored_weights(onnx_pair.folder)}
    assert files == {"target.weights", "draft.weights"}
    assert VOCAB_SIZE * 32 * 4 > LARGE  # so that the tables above are external at all
