"""Weight quantisation: which nodes, how far off, what is stored, and that bundles of it decode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from spec_compile.check import CheckOptions, check_bundle
from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair
from spec_compile.errors import ConfigError
from spec_compile.export.quantize import quantise_rows
from spec_compile.runtime.api import load
from tests.helpers.tiny_models import save_tiny_model, write_tokenizer

WIDTH = 64


@pytest.mark.parametrize(
    "bits, shape, size",
    [
        (8, (5, 32), 32),
        (8, (3, 40), 32),
        (8, (7, 192), 64),
        (8, (2, 256), 128),
        (4, (5, 32), 32),
        (4, (3, 40), 32),
        (4, (2, 256), 32),
    ],
)
def test_every_weight_is_off_by_half_a_step_at_most(
    bits: int, shape: tuple[int, int], size: int
) -> None:
    matrix = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    blocks = quantise_rows(matrix, bits)
    assert blocks.size == size
    assert blocks.data.shape == (shape[0], -(-shape[1] // size), size * bits // 8)
    restored = blocks.dequantised()[:, : shape[1]]
    step = np.repeat(np.abs(blocks.scales), size, axis=1)[:, : shape[1]]
    # One end of the symmetric range is a step short: the largest value may be off by a whole one.
    inside = np.abs(matrix) < np.abs(step) * ((1 << (bits - 1)) - 1)
    assert (np.abs(restored - matrix) <= step * 0.5001)[inside].all()
    assert (np.abs(restored - matrix) <= step * 1.0001).all()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two tiny checkpoints whose widths are whole blocks; the target's head is tied."""
    root = tmp_path_factory.mktemp("models")
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "head_dim": 16}
    made = {}
    for name, seed, tied in (("target", 1, True), ("draft", 2, False)):
        made[name] = root / name
        options: dict[str, Any] = {**sizes, "num_hidden_layers": 1, "tie_word_embeddings": tied}
        save_tiny_model(made[name], "llama", seed=seed, **options)
        write_tokenizer(made[name])
    return made


def bundle(folders: dict[str, Path], output: Path, **options: str) -> Path:
    config = SpecConfig(num_speculative_tokens=2, max_length=24, batch_size=3, **options)  # type: ignore[arg-type]
    return compile_pair(str(folders["target"]), str(folders["draft"]), output, config)


def operators(path: Path) -> list[str]:
    return [node.op_type for node in ir.load(path).graph]


@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_all_products_and_look_ups(fusion: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = bundle(folders, tmp_path / "bundle", quantize="int8", fusion=fusion)
    for path in folder.glob("*.onnx"):
        model = ir.load(path)
        products = [n for n in model.graph if n.op_type in ("MatMul", "Gemm")]
        assert not any(n.inputs[1].is_initializer() for n in products)  # type: ignore[union-attr]
        assert {"MatMulNBits", "GatherBlockQuantized"} <= {n.op_type for n in model.graph}
    # Head and embedding of the target are one weight: look-up and product read the same bytes.
    initializers = ir.load(folder / "target.onnx").graph.initializers
    places = {
        name: (value.const_value.offset, value.const_value.length)  # type: ignore[union-attr]
        for name, value in initializers.items()
        if "embed_tokens" in name and ".data" in name
    }
    assert len(places) == 2 and len(set(places.values())) == 1
    config = load(folder).manifest.config
    assert (config.quantize, config.quantize_draft) == ("int8", "int8")


def test_target_and_draft_apart(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = bundle(folders, tmp_path / "bundle", quantize="int8", quantize_draft="none")
    assert "MatMulNBits" in operators(folder / "verify.onnx")
    assert "MatMulNBits" not in operators(folder / "draft.onnx")
    config = load(folder).manifest.config
    assert (config.quantize, config.quantize_draft) == ("int8", None)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_logits_and_tokens(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    plain = load(bundle(folders, tmp_path / "plain"), num_threads=1)
    quantized = load(bundle(folders, tmp_path / "quantized", quantize=kind), num_threads=1)
    prompt = [3, 9, 4, 7]
    expected, found = plain.next_logits(prompt), quantized.next_logits(prompt)
    share = {"int8": 0.03, "int4": 0.35}[kind]
    assert 0 < np.abs(found - expected).max() < share * np.abs(expected).max()
    options = CheckOptions(max_new_tokens=12, law_samples=1000, num_threads=1)
    report = check_bundle(quantized.bundle.folder, options)
    assert report.passed, [(one.name, one.detail) for one in report.results]


def test_an_export_without_it_does_without_the_engine() -> None:
    code = "import sys, spec_compile.export.onnxruntime; sys.exit('onnxruntime' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("options", [{"quantize": "int3"}, {"quantize_draft": "fp8"}])
def test_unknown_kinds_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="choose one of"):
        SpecConfig(**options)  # type: ignore[arg-type]
