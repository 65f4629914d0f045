"""The small ONNX reader against the onnx package."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from spec_compile.errors import ArtifactError
from spec_compile.runtime.onnx_file import read_onnx
from tests.helpers.toy_bundle import Toy

ToyFolder = Callable[[Toy], Path]


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes of a graph and of the graphs in its nodes' attributes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from all_nodes(subgraph)


def branch(name: str, location: str) -> onnx.GraphProto:
    """A one-node graph that reads external data."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="length", value="4")
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    return helper.make_graph([helper.make_node("Relu", [name], ["y"])], name, [], [out], [tensor])


def test_operators_and_external_data_in_subgraphs(tmp_path: Path) -> None:
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("a", "x.data"), else_branch=branch("b", "y/z.data")
    )
    fused = helper.make_node("FusedMatMul", ["y", "y"], ["z"], domain="com.microsoft")
    model = helper.make_model(helper.make_graph([node, fused], "g", [condition], [out]))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    summary = read_onnx(path)
    assert summary.op_counts == {"If": 1, "Relu": 2, "com.microsoft::FusedMatMul": 1}
    assert summary.external_files == {"x.data", "y/z.data"}


@pytest.mark.parametrize("graph", ["draft", "verify", "target"])
def test_counts_equal_those_of_the_onnx_package(toy_folder: ToyFolder, graph: str) -> None:
    path = toy_folder(Toy()) / f"{graph}.onnx"
    expected = Counter(node.op_type for node in all_nodes(onnx.load(path).graph))
    assert read_onnx(path).op_counts == expected


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_files_give_one_error(
    toy_folder: ToyFolder, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever the bytes, the reader returns or raises `ArtifactError`, and it ends."""
    whole = bytearray((toy_folder(Toy()) / "target.onnx").read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4)):
        whole[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with contextlib.suppress(ArtifactError):
        read_onnx(path)


def test_field_number_that_other_readers_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    # Field 7, the graph, with bit 32 of the key set, and nothing in it.
    path.write_bytes(bytes([0xBA, 0x80, 0x80, 0x80, 0x10, 0x00]))
    with pytest.raises(ArtifactError, match="not a whole ONNX file"):
        read_onnx(path)
