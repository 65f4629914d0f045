"""Engines built for real by TensorRT for RTX, which needs no device; skipped without it."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

from spec_compile.config import SpecConfig
from spec_compile.driver import compile
from spec_compile.engine_spec import WRITTEN_AGAIN
from spec_compile.errors import BackendError
from spec_compile.export.backend import BuildContext
from spec_compile.export.tensorrt import TensorRtBackend, TensorRtRtxBackend, write_onnx
from spec_compile.export.tensorrt_device import device_capability
from spec_compile.export.weight_names import name_weights_of
from spec_compile.manifest import GraphSpec
from spec_compile.program import Graph
from spec_compile.runtime.api import load
from spec_compile.runtime.loader import Bundle, open_bundle
from tests.export.test_onnx_model import all_nodes
from tests.helpers.captured import capture_model, capture_pair, eager_model, run_pipeline
from tests.helpers.tiny_models import VOCAB_SIZE

trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
DOCS = Path(__file__).parents[2] / "docs" / "backends.md"
SMOLLM2 = os.environ.get("SPEC_COMPILE_SMOLLM2", "")
LAYERS = {"target": 6, "draft": 1}  # of the presets llama and small
K, MAX_LENGTH = 4, 256


def export(folder: Path, fusion: str, **options: Any) -> Bundle:
    options = {"dtype": "float16", "max_length": MAX_LENGTH, **options}
    config = SpecConfig(fusion=fusion, backend="tensorrt-rtx", **options)
    return open_bundle(compile("llama", "small", folder / fusion, config))


def report(bundle: Bundle) -> dict[str, Any]:
    return json.loads(bundle.path("engine_report.json").read_text())["graphs"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def verify_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export(tmp_path_factory.mktemp("engines"), "verify")


@pytest.fixture(scope="module")
def step_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export(tmp_path_factory.mktemp("engines"), "step")


@pytest.fixture(params=["verify", "step"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    found: Bundle = request.getfixturevalue(f"{request.param}_bundle")
    return found


def forwards(graph: str) -> int:
    """Layers that a call of `graph` passes, of both models together."""
    draft = K * LAYERS["draft"]
    return {"target": 6, "verify": 6, "draft": draft, "step": 6 + draft}[graph]


def test_attention_caches_and_rotary_embeddings_stay_layers(bundle: Bundle) -> None:
    for name, graph in report(bundle).items():
        layers = Counter(graph["layers"])
        assert layers["ATTENTION_INPUT"] == layers["ATTENTION_OUTPUT"] == forwards(name)
        assert layers["KV_CACHE_UPDATE"] == layers["ROTARY_EMBEDDING"] == 2 * forwards(name)


def test_nothing_is_left_to_the_host_or_to_plugins(bundle: Bundle) -> None:
    hosted = {"PLUGIN", "PLUGIN_V2", "PLUGIN_V3", "CONDITION", "TRIP_LIMIT", "NON_ZERO"}
    for graph in report(bundle).values():
        assert not hosted & set(graph["layers"])
        assert not [line for line in graph["log"] if line.startswith(("ERROR", "INTERNAL"))]


def test_tensors_are_the_manifests(bundle: Bundle) -> None:
    """And further writes of a cache have inputs of their own, one per write after the first."""
    for name, graph in report(bundle).items():
        spec: GraphSpec = bundle.manifest.graphs[name]
        for side, tensors in (("inputs", spec.inputs), ("outputs", spec.outputs)):
            expected = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in tensors]
            assert graph[side] == expected
        writes = [tensor.name for tensor in spec.outputs if tensor.alias_of is not None]
        further = [write for write in writes if not write.startswith("next_")]
        assert sorted(graph["inputs_written_again"]) == sorted(w + WRITTEN_AGAIN for w in further)
        assert len(further) == (
            0 if name in ("target", "verify") else 2 * LAYERS["draft"] * (K - 1)
        )


def test_the_manifest_says_what_runs_the_engines(bundle: Bundle) -> None:
    engine = bundle.manifest.engine
    assert engine is not None
    assert (engine.package, engine.version) == ("tensorrt_rtx", trt.__version__)
    assert (engine.weights, engine.compute_capabilities) == ("embedded", ())
    for graph, usual in (("target", 1), *((g, 2) for g in ("draft", "step"))):
        if graph in bundle.manifest.graphs:
            assert engine.profile(graph, rows=8, tokens=usual) == 0
            assert engine.profile(graph, rows=1, tokens=K + 1) == 0
            assert engine.profile(graph, rows=8, tokens=MAX_LENGTH) == 1
            assert engine.profile(graph, rows=9, tokens=1) is None
    for name, graph_spec in bundle.manifest.graphs.items():
        assert graph_spec.file == f"{name}.engine"
        assert graph_spec.file in bundle.manifest.files


def test_nothing_of_this_machine_is_in_the_bundle(bundle: Bundle) -> None:
    assert not [name for name in bundle.manifest.files if name.endswith((".onnx", ".weights"))]
    text = bundle.path("engine_report.json").read_text()
    assert str(bundle.folder.parent) not in text and ".onnx." not in text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_types_build(tmp_path: Path, dtype: str) -> None:
    """Attention in float32 has no kernel of its own: the builder makes products and softmax."""
    bundle = export(tmp_path, "verify", dtype=dtype, acceptance="greedy", max_length=64)
    for graph in report(bundle).values():
        caches = [t for t in graph["inputs"] if "_cache." in t["name"]]
        assert {tensor["dtype"] for tensor in caches} == {dtype}
        assert graph["layers"]["KV_CACHE_UPDATE"] > 0


def test_several_drafts_build(tmp_path: Path) -> None:
    """The target's caches are written, then the survivor's entries are moved."""
    options = {"acceptance": "fanout", "num_drafts": 2, "num_speculative_tokens": 2}
    bundle = export(tmp_path, "verify", max_length=64, **options)
    verify = report(bundle)["verify"]
    assert verify["layers"]["KV_CACHE_UPDATE"] == 2 * 2 * LAYERS["target"]
    assert len(verify["inputs_written_again"]) == 2 * LAYERS["target"]
    engine = bundle.manifest.engine
    assert engine is not None and engine.profiles["draft"][0].tokens.best == 3


def has_device() -> bool:
    try:
        return bool(device_capability())
    except BackendError:
        return False


@pytest.mark.skipif(has_device(), reason="there is a device here")
def test_a_bundle_without_a_device_is_one_line(step_bundle: Bundle) -> None:
    pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    with pytest.raises(BackendError, match="--backend onnxruntime") as error:
        load(step_bundle.folder)
    assert "\n" not in str(error.value)


def test_devices_to_build_for(tmp_path: Path) -> None:
    options = {"acceptance": "greedy", "max_length": 64, "compute_capabilities": ("8.9",)}
    bundle = export(tmp_path, "verify", **options)
    assert bundle.manifest.engine is not None
    assert bundle.manifest.engine.compute_capabilities == ("8.9",)


def test_a_device_that_is_not_built_for(tmp_path: Path) -> None:
    from spec_compile.export.tensorrt_build import EngineBuilder

    with pytest.raises(BackendError, match=r"builds for .*8\.9.*, not for 9\.9"):
        EngineBuilder(trt, ("9.9",))


def test_what_the_parser_refuses_is_one_line(tmp_path: Path) -> None:
    from spec_compile.export.tensorrt_build import EngineBuilder

    path = tmp_path / "target.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(BackendError, match="cannot parse target") as error:
        EngineBuilder(trt, ()).build(path, Graph(None, (), ()), ())  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def parser() -> Any:
    from spec_compile.export.tensorrt_report import BuildLog, new_logger

    logger = new_logger(trt, BuildLog())
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    return builder, network, trt.OnnxParser(network, logger)


def operators(folder: Path, acceptance: str, num_drafts: int) -> set[str]:
    config = SpecConfig(
        num_speculative_tokens=2, acceptance=acceptance, fusion="step", num_drafts=num_drafts
    )
    models = {"target": eager_model("llama", seed=1), "draft": eager_model("qwen2", seed=2)}
    program = run_pipeline(capture_pair(models["target"], models["draft"], config, 24), config, 24)
    context = BuildContext(
        VOCAB_SIZE,
        program.weight_names,
        max_length=24,
        batch_size=8,
        num_speculative_tokens=2,
    )
    files = write_onnx(program, context, folder)
    return {
        node.op_type
        for path in files.values()
        for node in all_nodes(onnx.load(path, load_external_data=False).graph)
    }


def test_every_operator_is_listed_and_supported(tmp_path: Path) -> None:
    """docs/backends.md lists the ONNX operators of our graphs; the parser's own word on each."""
    found: set[str] = set()
    for acceptance, num_drafts in (("block", 1), ("typical", 1), ("kseq", 2), ("fanout", 2)):
        folder = tmp_path / acceptance
        folder.mkdir()
        found |= operators(folder, acceptance, num_drafts)
    assert found == listed_operators()
    _builder, _network, reader = parser()
    assert {name for name in found if not reader.supports_operator(name)} == set()
    assert not reader.supports_operator("NoSuchOperator")


def listed_operators() -> set[str]:
    """Those of docs/backends.md, by kind of TensorRT layer."""
    table = DOCS.read_text(encoding="utf-8").partition("## Operators")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}


@pytest.mark.parametrize("kind", ["gemma2", "gpt2", "phi3", "qwen3"])
def test_other_architectures_parse(tmp_path: Path, kind: str) -> None:
    from spec_compile.program import Program

    options = {"sliding_window": 4} if kind in ("gemma2", "phi3") else {}
    model = eager_model(kind, **options)
    context = BuildContext(
        VOCAB_SIZE,
        name_weights_of({"target": model}),
        max_length=32,
        batch_size=8,
        num_speculative_tokens=4,
    )
    path = write_onnx(Program({"target": capture_model(model)}), context, tmp_path)["target"]
    _builder, network, reader = parser()
    assert reader.parse_from_file(str(path)), [
        reader.get_error(index).desc() for index in range(reader.num_errors)
    ]
    kinds = Counter(network.get_layer(i).type.name for i in range(network.num_layers))
    # Attention that caps its scores is lowered: TensorRT's has no such form.
    assert kinds["ATTENTION_INPUT"] == (0 if kind == "gemma2" else 2)
    assert kinds["KV_CACHE_UPDATE"] == 4


@pytest.mark.skipif(has_device(), reason="there is a device here")
def test_tensorrt_itself_needs_a_device() -> None:
    """Whatever is missing first, package or driver: one line that says what to do."""
    with pytest.raises(BackendError, match="tensorrt") as error:
        TensorRtBackend()
    assert "\n" not in str(error.value)
    assert TensorRtRtxBackend().name == "tensorrt-rtx"


@pytest.mark.slow
@pytest.mark.skipif(not SMOLLM2, reason="SPEC_COMPILE_SMOLLM2 names no folder of SmolLM2-135M")
@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_smollm2_builds(tmp_path: Path, fusion: str) -> None:
    config = SpecConfig(
        fusion=fusion, backend="tensorrt-rtx", dtype="float16", max_length=512, batch_size=2
    )
    folder = compile(SMOLLM2, SMOLLM2, tmp_path / fusion, config)
    for name, graph in report(open_bundle(folder)).items():
        calls = {"target": 1, "verify": 1, "draft": K, "step": K + 1}[name]
        assert graph["layers"]["ATTENTION_INPUT"] == 30 * calls
        assert graph["layers"]["KV_CACHE_UPDATE"] == 60 * calls
