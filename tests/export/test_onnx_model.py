"""Translated graphs: legal, standard, and in ONNX Runtime what they are in torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor

from spec_compile.passes.merge_duplicates import MergeDuplicates
from spec_compile.passes.remove_no_ops import RemoveNoOps
from spec_compile.program import Graph, Program, as_function, call
from tests.export.conftest import OnnxPair, round_inputs
from tests.helpers.captured import (
    capture_model,
    eager_logits,
    eager_model,
    empty_caches,
    random_tokens,
    updated_caches,
)
from tests.helpers.onnx_files import OnnxFile, build_onnx
from tests.helpers.tiny_models import VOCAB_SIZE

WINDOW = 4
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "gemma2": (
        "gemma2",
        {
            "sliding_window": WINDOW,
            # Tight enough that a mask put on before the cap lets hidden tokens shine through.
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gpt2": ("gpt2", {}),
    "phi3": ("phi3", {"sliding_window": WINDOW, "partial_rotary_factor": 0.5}),
}
Translated = Callable[[str], tuple[OnnxFile, Path]]


@cache
def captured(name: str) -> tuple[Graph, Any]:
    """A captured model, cleaned up as in the pipeline, and the model."""
    kind, options = MODELS[name]
    model = eager_model(kind, **options)
    program = Program({"target": capture_model(model)})
    for each in (RemoveNoOps(), MergeDuplicates()):
        program = each(program).program
    return program.graphs["target"], model


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> Translated:
    """`translated(name)`: a captured model in ONNX Runtime, and its file."""

    @cache
    def build(name: str) -> tuple[OnnxFile, Path]:
        graph, model = captured(name)
        folder = tmp_path_factory.mktemp("onnx")
        path = build_onnx(Program({"target": graph}), folder, VOCAB_SIZE, target=model)["target"]
        return OnnxFile(path, graph), path

    return build


def two_calls(
    run: Callable[[dict[str, Tensor]], dict[str, Tensor]], graph: Graph, rows: int, num_new: int
) -> dict[str, Tensor]:
    """A prefill of 6 tokens, then `num_new` tokens behind 6, 1 and 3 entries: all outputs."""
    prefix, new = random_tokens(rows, 6, seed=1), random_tokens(rows, num_new, seed=2)
    lengths = torch.tensor([6, 1, 3])[:rows]
    caches = empty_caches(graph, rows)
    first = run({"tokens": prefix, "lengths": lengths * 0, **caches})
    return run({"tokens": new, "lengths": lengths, **updated_caches(graph, first)})


@pytest.mark.parametrize("rows,num_new", [(1, 1), (3, 2), (3, 7), (1, 7)])
@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime_computes_what_torch_does(
    translated: Translated, name: str, rows: int, num_new: int
) -> None:
    graph, _ = captured(name)
    module = as_function(graph)
    expected = two_calls(lambda tensors: call(graph, module, tensors), graph, rows, num_new)
    actual = two_calls(translated(name)[0], graph, rows, num_new)
    assert actual.keys() == expected.keys()
    for output, value in expected.items():
        torch.testing.assert_close(actual[output], value, rtol=0, atol=1e-4)


def test_soft_capping_comes_before_the_mask(translated: Translated) -> None:
    """Against transformers itself: a mask under the cap would let hidden tokens be seen."""
    kind, options = MODELS["gemma2"]
    tokens = random_tokens(1, 9, seed=3)
    graph, _ = captured("gemma2")
    inputs = {"tokens": tokens, "lengths": torch.tensor([0]), **empty_caches(graph, 1)}
    expected = eager_logits(eager_model(kind, **options), tokens[0])
    logits = translated("gemma2")[0](inputs)["logits"][0]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("rows,width", [(1, 1), (3, 2), (3, 7), (1, 7)])
@pytest.mark.parametrize("name", ["draft", "verify", "target"])
def test_rounds_emit_the_same_tokens(onnx_pair: OnnxPair, name: str, rows: int, width: int) -> None:
    """Whole rounds, rows with options and lengths of their own, no size of which is baked in."""
    graph = onnx_pair.program.graphs[name]
    inputs = round_inputs(graph, rows, width)
    expected = call(graph, as_function(graph), inputs)
    actual = onnx_pair.files[name](inputs)
    for output, value in expected.items():
        if value.dtype == torch.int64:
            assert torch.equal(actual[output], value)
        else:
            torch.testing.assert_close(actual[output], value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["draft", "verify", "target"])
def test_files_of_rounds_are_legal_and_standard(onnx_pair: OnnxPair, name: str) -> None:
    check_standard(onnx_pair.folder / f"{name}.onnx")


@pytest.mark.parametrize("name", MODELS)
def test_the_file_is_legal_and_of_standard_operators(translated: Translated, name: str) -> None:
    check_standard(translated(name)[1])


def check_standard(path: Path) -> None:
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path, load_external_data=False)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 24)]
    assert {node.domain for node in all_nodes(model.graph)} == {""}
    assert not model.functions


def test_norms_and_rotary_embeddings_are_one_operator_each(translated: Translated) -> None:
    model = onnx.load(translated("llama")[1], load_external_data=False)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("RMSNormalization") == 5  # two a layer and the last
    assert kinds.count("RotaryEmbedding") == 4  # queries and keys
    assert kinds.count("Attention") == 2
    assert kinds.count("TensorScatter") == 4


@pytest.mark.parametrize("name", MODELS)
def test_tensors_are_those_of_the_contract(translated: Translated, name: str) -> None:
    graph, _ = captured(name)
    model = onnx.load(translated(name)[1], load_external_data=False)
    for values, specs in ((model.graph.input, graph.inputs), (model.graph.output, graph.outputs)):
        found = [
            (value.name, tuple(map(size, value.type.tensor_type.shape.dim))) for value in values
        ]
        assert found == [(spec.name, spec.shape) for spec in specs]


def size(dim: Any) -> int | str:
    return str(dim.dim_param) if dim.dim_param else int(dim.dim_value)


def all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Nodes of a graph and of the branches inside it."""
    nodes = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                nodes += all_nodes(attribute.g)
    return nodes
