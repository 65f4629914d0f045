"""`Program`, `Graph` and tracing: names, symbolic sizes, hashes, edits that share weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx

from spec_compile.errors import CaptureError
from spec_compile.program import (
    Graph,
    Program,
    TensorSpec,
    as_function,
    call,
    example,
    first_line,
    trace,
    updated_name,
)
from tests.helpers.hand_made import HandMade, count, floats, hand_made, integers, program_of, run

aten = torch.ops.aten


def double(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"y": tensors["x"] * 2.0, "z": tensors["x"].sum(dim=1)}


def graph_of(factor: float = 2.0) -> Graph:
    return hand_made(lambda t: {"y": t["x"] * factor}, floats("x", "B", "T"))


def test_outputs_are_named_typed_and_sized() -> None:
    graph = hand_made(double, floats("x", "B", "T"))
    assert graph.outputs == (
        TensorSpec("y", torch.float32, ("B", "T")),
        TensorSpec("z", torch.float32, ("B",)),
    )
    assert graph.input("x") == TensorSpec("x", torch.float32, ("B", "T"))
    with pytest.raises(KeyError):
        graph.input("y")


def test_derived_sizes_are_said_as_they_are() -> None:
    graph = hand_made(lambda t: {"y": t["x"][:, 1:].flatten()}, floats("x", "B", 3))
    ((size,),) = (spec.shape for spec in graph.outputs)
    assert isinstance(size, str) and size not in ("B", "T")


@pytest.mark.parametrize("rows,width", [(1, 1), (1, 16), (8, 1), (8, 16)])
def test_symbolic_sizes_reach_from_one_to_their_limits(rows: int, width: int) -> None:
    program = program_of(double, floats("x", "B", "T"))
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    assert torch.equal(run(program, x=x)["y"], x * 2.0)


@pytest.mark.parametrize("batch_size,max_length", [(1, 2), (2, 3), (3, 5)])
def test_limits_may_be_smaller_than_the_examples(batch_size: int, max_length: int) -> None:
    module = HandMade(double, (floats("x", "B", "T"),), {})
    graph = trace(module, batch_size=batch_size, max_length=max_length)
    outputs = call(graph, as_function(graph), {"x": torch.ones(1, 2)})
    assert outputs["z"].tolist() == [2.0]


def test_updated_caches_name_the_input_they_may_overwrite() -> None:
    graph = hand_made(
        lambda t: {
            "next_key_cache.0": t["key_cache.0"] + 1.0,
            "next12_key_cache.0": t["key_cache.0"] + 2.0,
            "next_of_kin": t["key_cache.0"].sum(),
        },
        floats("key_cache.0", "B", 2, 4, 2),
    )
    assert [spec.alias_of for spec in graph.outputs] == ["key_cache.0", "key_cache.0", None]
    assert [spec.is_cache for spec in graph.outputs] == [True, True, False]
    assert [updated_name("key_cache.0"), updated_name("key_cache.0", 12)] == [
        spec.name for spec in graph.outputs[:2]
    ]


def test_control_flow_on_values_is_refused_in_one_line() -> None:
    def branch(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        x = tensors["x"]
        return {"y": x + 1.0 if x.sum() > 0 else x}

    with pytest.raises(CaptureError, match=r"^torch.export refused the graph: ") as caught:
        hand_made(branch, floats("x", "B"))
    assert "\n" not in str(caught.value)


def test_a_size_that_the_function_fixes_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"^torch.export refused the graph: "):
        hand_made(lambda t: {"y": t["x"] + torch.ones(3)}, floats("x", "B"))


def test_the_hash_follows_structure_and_nothing_else() -> None:
    first, same, other = (Program({"g": graph_of(f)}) for f in (2.0, 2.0, 3.0))
    assert first.structural_hash() == same.structural_hash()
    assert first.structural_hash() != other.structural_hash()
    assert first.structural_hash() != Program({"h": graph_of()}).structural_hash()
    renamed = hand_made(lambda t: {"out": t["x"] * 2.0}, floats("x", "B", "T"))
    assert first.structural_hash() != Program({"g": renamed}).structural_hash()


def test_programs_are_values() -> None:
    one, two = graph_of(2.0), graph_of(3.0)
    program = Program({"a": one})
    wider = program.with_graph("b", two)
    assert list(program.graphs) == ["a"]
    assert list(wider.graphs) == ["a", "b"]
    assert list(wider.without("a", "absent").graphs) == ["b"]
    assert wider.with_graph("a", two).graphs["a"] is two


def replace_sine(graph: fx.Graph) -> int:
    """Turn every sine into a cosine, outputs included."""
    found = [node for node in graph.nodes if node.target is aten.sin.default]
    for node in found:
        with graph.inserting_before(node):
            new = graph.call_function(aten.cos.default, node.args)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    return len(found)


def test_an_edit_leaves_the_graph_and_shares_its_weights() -> None:
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    program = program_of(lambda t: {"y": torch.sin(t["x"] @ t["w"])}, floats("x", "B", 4), w=weight)
    before = program.structural_hash()
    graph = program.graphs["main"]
    edited, rewrites = graph.edited(replace_sine)
    changed = program.with_graph("main", edited)
    assert rewrites == 1
    assert program.structural_hash() == before != changed.structural_hash()
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(run(changed, x=x)["y"], torch.cos(x @ weight))
    torch.testing.assert_close(run(program, x=x)["y"], torch.sin(x @ weight))
    ours, theirs = (g.exported.state_dict.values() for g in (graph, edited))
    assert [t.data_ptr() for t in ours] == [t.data_ptr() for t in theirs]
    assert count(changed, aten.sin.default) == 0


def test_an_edit_that_does_nothing_gives_the_graph_back() -> None:
    graph = graph_of()
    assert graph.edited(replace_sine) == (graph, 0)


def test_call_goes_by_names() -> None:
    graph = hand_made(lambda t: {"difference": t["a"] - t["b"]}, floats("a", "B"), floats("b", "B"))
    tensors = {"b": torch.ones(2), "a": torch.full((2,), 3.0), "unused": torch.zeros(1)}
    outputs = call(graph, as_function(graph), tensors)
    assert outputs["difference"].tolist() == [2.0, 2.0]


def test_text_is_python() -> None:
    compile(graph_of().text(), "graph", "exec")
    assert "torch.ops.aten.mul.Tensor" in graph_of().text()


def test_examples_are_valid() -> None:
    assert example(integers("num_new", "B")).tolist() == [1, 1, 1]
    assert example(floats("x", "B", "T", 7)).shape == (3, 5, 7)


def test_first_line_skips_blank_ones() -> None:
    assert first_line(ValueError("\n  \n what went wrong \nmore")) == "what went wrong"
    assert first_line(ValueError()) == "ValueError"
