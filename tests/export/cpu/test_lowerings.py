"""All lowerings on real architectures: the numbers of the standard form, for any batch."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from spec_compile.export.cpu.pipeline import build_lowerings, lower_for_cpu
from tests.helpers.lowering import MODELS, as_file, operators, translated, two_calls
from tests.helpers.onnx_files import OnnxFile

# How often each lowering finds its place in two layers: caches sliced, attention grouped.
COUNTS = {
    "llama": (2, 2),
    "narrow": (2, 2),
    "qwen2": (2, 2),
    "qwen3": (2, 2),
    "mistral": (2, 0),
    "wide_window": (2, 2),
    "gemma2": (2, 1),
    "phi3": (2, 2),
    "gpt2": (2, 2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lowered")


@cache
def both(name: str, folder: Path) -> tuple[OnnxFile, OnnxFile]:
    """A model in standard form, and lowered."""
    found = translated(name)
    standard, lowered = found.standard.clone(), found.lowered()[0]
    return (
        as_file(standard, found.graph, folder / name / "standard"),
        as_file(lowered, found.graph, folder / name / "lowered"),
    )


@pytest.mark.parametrize("rows,num_new", [(1, 1), (1, 7), (3, 1), (3, 7)])
@pytest.mark.parametrize("name", MODELS)
def test_lowered_models_compute_the_same(name: str, rows: int, num_new: int, folder: Path) -> None:
    standard, lowered = both(name, folder)
    expected, actual = (two_calls(run, rows, num_new) for run in (standard, lowered))
    assert actual.keys() == expected.keys()
    for output, value in expected.items():
        torch.testing.assert_close(actual[output], value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_each_lowering_counts_what_it_does(name: str) -> None:
    _, counts = translated(name).lowered()
    assert (counts["slice_caches"], counts["group_attention"]) == COUNTS[name]
    # Two sums a layer, each before a norm; GPT-2 adds positions to embeddings before the first.
    assert counts["fuse_skip_norms"] == (5 if name == "gpt2" else 4)


@pytest.mark.parametrize("name", MODELS)
def test_a_second_run_does_nothing(name: str) -> None:
    found = translated(name)
    model, _ = found.lowered()
    before = operators(model)
    counts = lower_for_cpu({"target": model}, found.context)
    assert counts == {each.name: 0 for each in build_lowerings()}
    assert operators(model) == before


def test_a_bundle_for_one_row_has_no_second_form(folder: Path) -> None:
    found = translated("llama", batch_size=1)
    model, _ = found.lowered()
    kinds = operators(model)
    assert kinds["GroupQueryAttention"] == 2
    assert not {"If", "Attention", "TensorScatter", "RotaryEmbedding", "Transpose"} & kinds.keys()
    alone = as_file(model, found.graph, folder / "alone")
    standard, _ = both("llama", folder)
    for output, value in two_calls(standard, 1, 7).items():
        torch.testing.assert_close(two_calls(alone, 1, 7)[output], value, rtol=0, atol=1e-4)
