"""What TensorRT is given, run by ONNX Runtime: the same results, every cache one memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import Tensor

from spec_compile.config import SpecConfig
from spec_compile.engine_spec import WRITTEN_AGAIN
from spec_compile.errors import BackendError
from spec_compile.export.backend import BuildContext
from spec_compile.export.tensorrt import write_onnx
from spec_compile.export.tensorrt_device import device_capability
from spec_compile.export.tensorrt_lowering import lower_for_tensorrt
from spec_compile.export.tensorrt_sampling import process_logits_by_halving
from spec_compile.export.weight_names import name_weights_of
from spec_compile.manifest import GraphSpec
from spec_compile.program import Graph, Program, as_function, call
from spec_compile.sampling import Sampling, process_logits
from tests.export.conftest import MAX_LENGTH, OnnxPair, round_inputs
from tests.export.test_onnx_model import all_nodes, captured, two_calls
from tests.helpers.captured import capture_pair, eager_model, run_pipeline, updated_caches
from tests.helpers.graph_builder import GraphBuilder
from tests.helpers.onnx_files import OnnxFile
from tests.helpers.tiny_models import VOCAB_SIZE

Models = dict[str, Any]


def written(program: Program, folder: Path, models: Models) -> dict[str, Path]:
    context = BuildContext(
        VOCAB_SIZE,
        {**name_weights_of(models), **program.weight_names},
        max_length=MAX_LENGTH,
        batch_size=8,
        num_speculative_tokens=2,
    )
    return write_onnx(program, context, folder)


@pytest.fixture(scope="module")
def lowered(onnx_pair: OnnxPair, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of `onnx_pair` (float32) for TensorRT."""
    return written(onnx_pair.program, tmp_path_factory.mktemp("lowered"), onnx_pair.models)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> dict[str, onnx.ModelProto]:
    """A pair in float16, fused to `step`, for TensorRT."""
    config = SpecConfig(num_speculative_tokens=2, fusion="step")
    target = eager_model("llama", seed=1).to(torch.float16)  # type: ignore[arg-type]
    draft = eager_model("llama", seed=2, num_hidden_layers=1).to(torch.float16)  # type: ignore[arg-type]
    program = run_pipeline(capture_pair(target, draft, config, MAX_LENGTH), config, MAX_LENGTH)
    files = written(program, tmp_path_factory.mktemp("half"), {"target": target, "draft": draft})
    return {
        name: onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False))
        for name, path in files.items()
    }


def run_in_place(path: Path, graph: Graph, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run a file as an engine does: one memory for a cache, however often it is written."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    memory = {s.name: np.ascontiguousarray(tensors[s.name].numpy()).copy() for s in graph.inputs}
    sources = {spec.name: spec.alias_of for spec in graph.outputs}
    expected = call(graph, as_function(graph), tensors)
    for name, value in expected.items():
        memory[name] = memory[sources[name]] if sources[name] else np.zeros_like(value.numpy())  # type: ignore[index]
    binding = session.io_binding()
    for each in session.get_inputs():
        array = memory[each.name.removesuffix(WRITTEN_AGAIN)]
        binding.bind_input(each.name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for each in session.get_outputs():
        array = memory[each.name]
        binding.bind_output(each.name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    session.run_with_iobinding(binding)
    return {name: torch.from_numpy(memory[name]) for name in expected}


@pytest.mark.parametrize("rows,width", [(1, 1), (3, 2), (3, 7)])
@pytest.mark.parametrize("name", ["draft", "verify", "target"])
def test_engines_in_place_compute_what_the_graph_does(
    onnx_pair: OnnxPair, lowered: dict[str, Path], name: str, rows: int, width: int
) -> None:
    check_in_place(onnx_pair.program.graphs[name], lowered[name], rows, width)


def check_in_place(graph: Graph, path: Path, rows: int, width: int) -> None:
    inputs = round_inputs(graph, rows, width)
    expected = call(graph, as_function(graph), inputs)
    actual = run_in_place(path, graph, inputs)
    caches = updated_caches(graph, expected)
    for spec in graph.outputs:
        # Whatever was written first is gone from the one memory: the last write counts.
        value = caches[spec.alias_of] if spec.alias_of else expected[spec.name]
        if value.dtype == torch.int64:
            assert torch.equal(actual[spec.name], value)
        else:
            torch.testing.assert_close(actual[spec.name], value, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, dict[str, Path]]:
    """A pair with three drafts a round, fused to `step`, and its files for TensorRT."""
    config = SpecConfig(num_speculative_tokens=2, acceptance="fanout", num_drafts=3, fusion="step")
    models = {"target": eager_model("llama", seed=1), "draft": eager_model("qwen2", seed=2)}
    captured = capture_pair(models["target"], models["draft"], config, MAX_LENGTH)
    program = run_pipeline(captured, config, MAX_LENGTH)
    return program, written(program, tmp_path_factory.mktemp("several"), models)


@pytest.mark.parametrize("rows,width", [(1, 7), (3, 2)])
def test_several_drafts_in_place_are_what_the_graph_computes(
    several: tuple[Program, dict[str, Path]], rows: int, width: int
) -> None:
    """Also where the entries of the draft that survives are moved inside the one memory."""
    program, files = several
    check_in_place(program.graphs["step"], files["step"], rows, width)


def test_moving_the_survivor_s_entries_is_a_further_write(
    several: tuple[Program, dict[str, Path]],
) -> None:
    model = onnx.load(several[1]["step"], load_external_data=False)
    again = {value.name for value in model.graph.input if value.name.endswith(WRITTEN_AGAIN)}
    targets = {name for name in again if "draft_" not in name}
    assert targets == {
        f"next1_{kind}_cache.{layer}{WRITTEN_AGAIN}"
        for kind in ("key", "value")
        for layer in (0, 1)
    }
    # Two layers; steps 1 and 2 of the draft's loop (the first writes the input), and the move.
    assert len(again - targets) == 2 * 2 * 2


def test_every_further_write_has_an_input(lowered: dict[str, Path]) -> None:
    model = onnx.load(lowered["draft"], load_external_data=False)
    again = [value.name for value in model.graph.input if value.name.endswith(WRITTEN_AGAIN)]
    assert again == [f"next1_draft_{kind}_cache.0{WRITTEN_AGAIN}" for kind in ("key", "value")]
    inputs = {value.name for value in model.graph.input}
    writes = [node for node in model.graph.node if node.op_type == "TensorScatter"]
    assert len(writes) == 4 and {node.input[0] for node in writes} <= inputs
    for name in ("verify", "target"):
        model = onnx.load(lowered[name], load_external_data=False)
        assert not any(value.name.endswith(WRITTEN_AGAIN) for value in model.graph.input)


@pytest.mark.parametrize("name", ["draft", "verify", "target"])
def test_no_operator_is_left_that_tensorrt_takes_otherwise(
    lowered: dict[str, Path], name: str
) -> None:
    model = onnx.load(lowered[name], load_external_data=False)
    kinds = {node.op_type for node in all_nodes(model.graph)}
    assert not kinds & {"ArgMax", "If", "Loop", "TopK"}


def test_the_lowest_of_equal_scores_is_chosen(tmp_path: Path) -> None:
    graph = GraphBuilder()
    scores = graph.input("scores", "float32", ("B", 4))
    graph.output(graph.ArgMax(scores, axis=-1, keepdims=0), "index", "int64", ("B",))
    graph.save(tmp_path / "argmax.onnx")
    model = ir.load(tmp_path / "argmax.onnx")
    assert lower_for_tensorrt(model) == 1
    ir.save(model, tmp_path / "lowered.onnx")
    session = ort.InferenceSession(tmp_path / "lowered.onnx", providers=["CPUExecutionProvider"])
    rows = [[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 5.0], [np.nan] * 4]
    (index,) = session.run(None, {"scores": np.array(rows, dtype=np.float32)})
    assert index.tolist() == [1, 0, 3, 3]


def test_additions_at_indices_are_sums(tmp_path: Path) -> None:
    """Also where an index comes twice: TensorRT scatters without adding."""
    graph = GraphBuilder()
    law = graph.input("law", "float32", ("B", 4))
    index, update = graph.input("index", "int64", ("B", 2)), graph.input("u", "float32", ("B", 2))
    added = graph.ScatterElements(law, index, update, axis=1, reduction="add")
    graph.output(added, "sum", "float32", ("B", 4))
    graph.save(tmp_path / "add.onnx")
    model = ir.load(tmp_path / "add.onnx")
    assert lower_for_tensorrt(model) == 1
    ir.save(model, tmp_path / "lowered.onnx")
    assert not [
        n for n in onnx.load(tmp_path / "lowered.onnx").graph.node if "Scatter" in n.op_type
    ]
    session = ort.InferenceSession(tmp_path / "lowered.onnx", providers=["CPUExecutionProvider"])
    feeds = {
        "law": np.ones((2, 4), dtype=np.float32),
        "index": np.array([[3, 0], [2, 2]]),
        "u": np.array([[0.5, 0.25], [1.0, 2.0]], dtype=np.float32),
    }
    (total,) = session.run(None, feeds)
    assert total.tolist() == [[1.25, 1, 1, 1.5], [1, 1, 4, 1]]


@pytest.mark.parametrize("rows,num_new", [(1, 1), (3, 7)])
def test_capped_attention_is_what_torch_computes(tmp_path: Path, rows: int, num_new: int) -> None:
    graph, model = captured("gemma2")
    path = written(Program({"target": graph}), tmp_path, {"target": model})["target"]
    file = OnnxFile(path, graph)
    assert not [n for n in onnx.load(path).graph.node if n.op_type == "Attention"]
    module = as_function(graph)
    expected = two_calls(lambda tensors: call(graph, module, tensors), graph, rows, num_new)
    actual = two_calls(file, graph, rows, num_new)
    for output, value in expected.items():
        torch.testing.assert_close(actual[output], value, rtol=0, atol=1e-4)


def test_a_cache_that_is_no_input_is_refused(tmp_path: Path) -> None:
    graph = GraphBuilder()
    cache = graph.Identity(graph.input("key_cache.0", "float32", ("B", 1, 8, 2)))
    update = graph.input("update", "float32", ("B", 1, 1, 2))
    lengths = graph.input("lengths", "int64", ("B",))
    written = graph.TensorScatter(cache, update, lengths, axis=2)
    graph.output(written, "next_key_cache.0", "float32", ("B", 1, 8, 2))
    spec: GraphSpec = graph.save(tmp_path / "cache.onnx")
    with pytest.raises(BackendError, match="caches that are inputs only"):
        lower_for_tensorrt(ir.load(tmp_path / spec.file))


def test_rotary_embeddings_of_half_models_are_one_operator(
    half: dict[str, onnx.ModelProto],
) -> None:
    kinds = [node.op_type for node in half["step"].graph.node]
    assert kinds.count("Attention") == 2 + 2 * 1
    assert kinds.count("RotaryEmbedding") == 2 * kinds.count("Attention")
    assert kinds.count("TensorScatter") == 2 * kinds.count("Attention")


def test_laws_and_acceptance_of_half_models_are_in_float32(
    half: dict[str, onnx.ModelProto],
) -> None:
    """Behind the logits nothing is in float16; before them, nothing but angles is in float32."""
    graph = half["step"].graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    tail = {"Softmax", "ReduceSum", "ReduceMax", "CumSum", "Exp", "Reciprocal", "Less", "Relu"}
    found = [types.get(node.output[0]) for node in graph.node if node.op_type in tail]
    assert len(found) > 20
    assert onnx.TensorProto.FLOAT16 not in found
    products = [types[node.output[0]] for node in graph.node if node.op_type == "MatMul"]
    assert set(products) == {onnx.TensorProto.FLOAT16}


def random_case(seed: int) -> tuple[Tensor, Sampling]:
    """Logits, with ties in some cases and -inf in others, and options of four rows."""
    generator = torch.Generator().manual_seed(seed)
    vocab_size = (64, 513, 2048)[seed % 3]
    logits = torch.randn(4, 3, vocab_size, generator=generator) * (1.0, 5.0, 20.0)[seed % 3]
    if seed % 4 == 0:
        logits = (logits * 2).round() / 2
    if seed % 5 == 0:
        logits[..., vocab_size // 2 :] = -torch.inf
    options = Sampling(
        torch.tensor([0.0, 1.0, 0.7, 1.6]),
        torch.randint((4, 50, vocab_size + 3)[seed % 3], (4,), generator=generator),
        torch.rand(4, generator=generator).clamp(min=1e-3) if seed % 2 else torch.ones(4),
        torch.rand(4, generator=generator) * 0.3 if seed % 7 == 0 else torch.zeros(4),
    )
    return logits, options


@pytest.mark.parametrize("seed", range(30))
def test_halving_finds_the_law_that_sorting_does(seed: int) -> None:
    logits, options = random_case(seed)
    expected, actual = process_logits(logits, options), process_logits_by_halving(logits, options)
    # Logits whose probability is 1e-14 of the largest one's count as equal.
    assert torch.equal(actual > 1e-13, expected > 1e-13)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def test_logits_nearer_than_the_interval_count_as_equal() -> None:
    """The stated limit: of two logits 1e-5 apart, top-k 1 keeps the one of lower id."""
    logits = torch.tensor([[[0.0, 2.0, 2.00001]]])
    options = Sampling(torch.ones(1), torch.ones(1).long(), torch.ones(1), torch.zeros(1))
    halved, exact = process_logits_by_halving(logits, options), process_logits(logits, options)
    assert halved[0, 0].argmax() == 1 and (halved > 0).sum() == 1
    assert exact[0, 0].argmax() == 2 and (exact > 0).sum() == 1


def test_a_missing_driver_is_one_line() -> None:
    with pytest.raises(BackendError, match="use --backend tensorrt-rtx") as error:
        device_capability("libno-such-driver.so.1")
    assert "\n" not in str(error.value)
