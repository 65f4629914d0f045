"""The ONNX Runtime engine: buffers in place, quiet, one line when something is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_compile.errors import BackendError
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.batch import Batch
from spec_compile.runtime.engines.onnxruntime import OnnxRuntimeEngine
from spec_compile.runtime.loader import open_bundle
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.rounds import Rounds
from tests.helpers.toy_bundle import Toy

ToyFolder = Callable[[Toy], Path]
LoadToy = Callable[[Toy], Decoder]
_WARNINGS = 2


@pytest.mark.parametrize("fusion", ["verify", "step"])
@pytest.mark.parametrize("speculative", [True, False])
def test_caches_are_updated_in_place_without_a_warning(
    toy_folder: ToyFolder, capfd: pytest.CaptureFixture[str], fusion: str, speculative: bool
) -> None:
    """ONNX Runtime warns, per call, when it must copy a cache that it could have shared."""
    toy = Toy(fusion=fusion)
    bundle = open_bundle(toy_folder(toy))
    engine = OnnxRuntimeEngine(bundle, num_threads=1, log_severity=_WARNINGS)
    decoder = Decoder(bundle, engine, None)
    result = decoder.generate([1, 2, 3], max_new_tokens=20, speculative=speculative)
    assert result.stats.num_rounds > 1
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_cache_that_must_be_copied_does_warn(
    toy_folder: ToyFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    """The test above can fail: apart buffers for past and present make the engine speak."""
    bundle = open_bundle(toy_folder(Toy()))
    engine = OnnxRuntimeEngine(bundle, num_threads=1, log_severity=_WARNINGS)
    spec = bundle.manifest.graphs["target"]
    buffers: dict[str, Any] = {
        t.name: np.zeros([size if isinstance(size, int) else 1 for size in t.shape], t.dtype)
        for t in (*spec.inputs, *spec.outputs)
    }
    session = engine._session("target", spec)
    binding = session.io_binding()
    for bind, tensors in ((binding.bind_input, spec.inputs), (binding.bind_output, spec.outputs)):
        for t in tensors:
            array = buffers[t.name]
            bind(t.name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    session.run_with_iobinding(binding)
    assert "TensorScatter" in capfd.readouterr().err


def test_rounds_write_the_bound_buffers(load_toy: LoadToy) -> None:
    toy = Toy(draft="self", k=2)
    decoder = load_toy(toy)
    batch = Batch([[1, 2]], GenerationOptions(), [0], toy.max_length)
    rounds = Rounds(decoder.engine, decoder.manifest, batch)
    output_tokens, num_emitted = rounds.output_tokens, rounds.num_emitted
    rounds.run()
    assert output_tokens.tolist() == [toy.target.greedy([1, 2], 3)]
    assert num_emitted.tolist() == [3]
    assert rounds.buffers["draft_probs"].sum(axis=-1).tolist() == [[1.0, 1.0]]


def test_graphs_are_loaded_when_needed(toy_folder: ToyFolder) -> None:
    bundle = open_bundle(toy_folder(Toy()))
    engine = OnnxRuntimeEngine(bundle, num_threads=1)
    decoder = Decoder(bundle, engine, None)
    assert sorted(engine._sessions) == []
    decoder.generate([1], max_new_tokens=1)
    assert sorted(engine._sessions) == ["draft", "verify"]
    decoder.generate([1], max_new_tokens=1, speculative=False)
    assert sorted(engine._sessions) == ["draft", "target", "verify"]


def test_a_failing_run_is_one_line(load_toy: LoadToy) -> None:
    decoder = load_toy(Toy())
    batch = Batch([[1, 2]], GenerationOptions(), [0], 48)
    rounds = Rounds(decoder.engine, decoder.manifest, batch, speculative=False)
    rounds.run()
    batch.committed[0] = 48
    batch.history = np.full((1, 60), 10**6, dtype=np.int64)
    with pytest.raises(BackendError, match="failed in target") as error:
        rounds.run()
    assert "\n" not in str(error.value)


def test_without_onnxruntime(toy_folder: ToyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(BackendError, match=r"pip install 'spec-compile\[cpu\]'"):
        load(toy_folder(Toy()))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_threads_do_not_change_tokens(toy_folder: ToyFolder, num_threads: int) -> None:
    toy = Toy()
    decoder = load(toy_folder(toy), num_threads=num_threads)
    result = decoder.generate([1, 2], max_new_tokens=10, ignore_eos=True)
    assert list(result.token_ids) == toy.target.greedy([1, 2], 10)
