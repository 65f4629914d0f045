"""`benchmarks/backends.py`, and the list of engines that are missing here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import backends
from spec_compile.benchmarking.availability import unavailable_engines
from spec_compile.runtime.engines import cuda

SKIPPED = ("AOTInductor", "torch.compile", "ONNX Runtime int8", "ONNX Runtime int4")


@pytest.mark.slow
def test_eager_and_onnxruntime_emit_the_same_tokens(tmp_path: Path) -> None:
    given = ["--max-new-tokens", "6", "--repeat", "1", "--warm-up", "0", "-k", "2"]
    given += ["--acceptance", "greedy", "--max-length", "256", "--num-threads", "1"]
    for name in SKIPPED:
        given += ["--skip", name]
    figure = backends.measure(backends.parse_arguments(given), tmp_path)
    rows = [tuple(row[:2]) for row in figure.rows]
    engines = ("ONNX Runtime float32", "torch eager")
    assert rows == [(name, mode) for name in engines for mode in ("target-only", "speculative")]
    results = figure.data["results"]
    for one in results:
        assert one["outputs_equal_to_target_only"] == one["prompts"] > 0
    assert results[1]["acceptance_histogram"] == results[3]["acceptance_histogram"]
    assert figure.data["not_available"] == backends.not_available()


def test_engines_that_are_missing_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found = unavailable_engines()
    assert found["onnxruntime --device cuda"] == "onnxruntime is not installed"
    assert set(found) >= {"onnxruntime --device tensorrt", "onnxruntime --device tensorrt-rtx"}


def test_a_package_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages may be there where the driver is not; both are told apart."""
    monkeypatch.setattr("spec_compile.benchmarking.availability.find_spec", lambda _: object())
    monkeypatch.setattr(cuda, "import_module", _fail)
    found = unavailable_engines()
    assert "cuda-bindings is not installed" in found["backend tensorrt-rtx"]
    assert "backend torch" not in found


def _fail(name: str) -> object:
    raise ImportError(name)
