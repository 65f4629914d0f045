"""The torch engine: tokens of the ONNX Runtime bundle, caches in place, code only when allowed."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_compile.config import SpecConfig
from spec_compile.errors import ArtifactError, BackendError, NativeCodeError
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.engine import NATIVE_CODE_VARIABLE
from spec_compile.runtime.engines.torch_inductor import WEIGHTS_FILE
from spec_compile.runtime.safetensors_file import map_safetensors
from spec_compile.runtime.shared_decoder import SharedDecoder
from tests.helpers.torch_bundles import MAX_LENGTH, compile_both

# Two small graphs: compiling is what takes the time.
FAST = SpecConfig(num_speculative_tokens=2, fusion="step", acceptance="greedy")
SLOW = [
    SpecConfig(num_speculative_tokens=2, fusion="verify", acceptance="greedy"),
    SpecConfig(num_speculative_tokens=2, fusion="verify", acceptance="block"),
    SpecConfig(num_speculative_tokens=3, fusion="step", acceptance="rejection"),
    SpecConfig(num_speculative_tokens=2, fusion="step", acceptance="kseq", num_drafts=2),
]
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.9},
    {"temperature": 0.8, "top_k": 5},
    {"temperature": 0.8, "top_p": 0.8},
    {"temperature": 1.5, "min_p": 0.1},
    {"temperature": 1.0, "top_k": 9, "top_p": 0.9},
)
PROMPTS = [[1], [2, 3, 4], [5] * (MAX_LENGTH - 1), [7, 8]]


@pytest.fixture(
    scope="module",
    params=[FAST, *(pytest.param(config, marks=pytest.mark.slow) for config in SLOW)],
    ids=lambda config: f"{config.fusion}-{config.acceptance}",
)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The bundle of one configuration, by backend."""
    return compile_both(request.param, tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def decoders(folders: dict[str, Path]) -> dict[str, Decoder]:
    return {
        name: load(path, num_threads=1, allow_native_code=True) for name, path in folders.items()
    }


def copied(folder: Path, to: Path, **engine: Any) -> Path:
    """A copy of a bundle whose manifest says other things of its engine."""
    shutil.copytree(folder, to)
    raw = json.loads((to / "manifest.json").read_text())
    raw["engine"] |= engine
    (to / "manifest.json").write_text(json.dumps(raw))
    return to


@pytest.mark.parametrize("speculative", [True, False])
def test_tokens_are_those_of_onnxruntime(decoders: dict[str, Decoder], speculative: bool) -> None:
    """Ragged rows side by side, and each by itself, up to the last slot."""
    samples = decoders["torch"].manifest.config.acceptance != "greedy"
    for options in ({}, *(SAMPLING if samples else ())):
        asked = {**options, "max_new_tokens": 99, "ignore_eos": True, "speculative": speculative}
        expected, actual = (tokens_of(decoders[name], asked) for name in ("onnxruntime", "torch"))
        assert actual == expected
        assert [len(ids) for ids in actual[:4]] == [MAX_LENGTH - len(p) for p in PROMPTS]


def tokens_of(decoder: Decoder, options: dict[str, Any]) -> list[tuple[int, ...]]:
    seeds = [3, 4, 5, 6]
    together = decoder.generate(PROMPTS, seed=seeds, **options)
    pairs = zip(PROMPTS, seeds, strict=True)
    alone = [decoder.generate(prompt, seed=seed, **options) for prompt, seed in pairs]
    return [result.token_ids for result in (*together, *alone)]


def test_scheduled_requests_get_the_same_tokens(folders: dict[str, Path]) -> None:
    prompts = [[1, 2, 3], [4], [5, 6]]
    expected = load(folders["onnxruntime"]).generate(prompts, ignore_eos=True)
    with SharedDecoder.load(folders["torch"], num_slots=2, allow_native_code=True) as decoder:
        actual = decoder.generate(prompts, ignore_eos=True)
    assert [one.token_ids for one in actual] == [one.token_ids for one in expected]


def test_caches_are_written_where_they_are(decoders: dict[str, Decoder]) -> None:
    """No output is a cache, and the bound arrays hold the new entries and nothing else new."""
    decoder = decoders["torch"]
    spec = decoder.manifest.graphs["target"]
    buffers: dict[str, Any] = {}
    for tensor in (*spec.inputs, *spec.outputs):
        sizes = {"B": 2, "T": 3}
        shape = [sizes[size] if isinstance(size, str) else size for size in tensor.shape]
        if tensor.alias_of is None:
            buffers[tensor.name] = np.zeros(shape, dtype=tensor.dtype)
    for cache in spec.caches:
        buffers[cache.name] += 7.0
    buffers["tokens"][:], buffers["num_new"][:] = [[1, 2, 3], [4, 5, 6]], 3
    buffers["lengths"][:] = [0, 4]
    decoder.engine.bind("target", buffers)()
    for cache in spec.caches:
        changed = (buffers[cache.name] != 7.0).any(axis=(1, 3))
        assert np.flatnonzero(changed[0]).tolist() == [0, 1, 2]
        assert np.flatnonzero(changed[1]).tolist() == [4, 5, 6]
    package = decoder.engine._packages["target"]  # type: ignore[attr-defined]
    tensors = [decoder.engine._tensor(t, buffers[t.name]) for t in spec.inputs]  # type: ignore[attr-defined]
    assert len(package.boxed_run(tensors)) == len(spec.outputs) - len(spec.caches)


def test_no_memory_of_a_cache_s_size_is_made(decoders: dict[str, Decoder]) -> None:
    """A package keeps its source, which lists the shape of everything that it allocates."""
    decoder = decoders["torch"]
    for spec in decoder.manifest.graphs.values():
        with zipfile.ZipFile(decoder.bundle.path(spec.file)) as package:
            (name,) = (n for n in package.namelist() if n.endswith(".wrapper.cpp"))
            source = package.read(name).decode()
        allocated = re.findall(r"int_array_\d+\[\] = \{(.*)\};", source)
        assert len(allocated) > 10
        for cache in spec.caches:
            sizes = ", ".join(f"{size}L" for size in cache.shape[2:])
            assert f"{sizes}}}" in source  # as the shape of an input
            assert not any(shape.endswith(sizes) for shape in allocated)


def test_weights_are_stored_and_mapped_once(
    folders: dict[str, Path], decoders: dict[str, Decoder]
) -> None:
    stored = map_safetensors(folders["torch"] / WEIGHTS_FILE)
    manifest = decoders["torch"].manifest
    size = sum(tensor.raw.size for tensor in stored.tensors.values())
    parameters = sum(model.num_parameters for model in manifest.models.values())
    assert size < 1.1 * 4 * parameters
    reads = [set(json.loads(text).values()) for text in stored.metadata.values()]
    assert sum("target.lm_head.weight" in names for names in reads) == 2


def test_code_runs_only_when_it_is_allowed(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NATIVE_CODE_VARIABLE, raising=False)
    with pytest.raises(NativeCodeError, match=r"holds machine code.*allow_native_code=True"):
        load(folders["torch"])
    monkeypatch.setenv(NATIVE_CODE_VARIABLE, "1")
    assert load(folders["torch"]).generate([1], max_new_tokens=1).token_ids
    with pytest.raises(NativeCodeError):
        load(folders["torch"], allow_native_code=False)


@pytest.mark.parametrize(
    "engine,problem",
    [
        ({"version": "1.0.0"}, "was compiled by torch 1.0.0"),
        ({"host_features": ["linux", "z80"]}, "compiled for a processor with z80"),
    ],
)
def test_code_for_elsewhere_is_refused(
    folders: dict[str, Path], tmp_path: Path, engine: dict[str, Any], problem: str
) -> None:
    folder = copied(folders["torch"], tmp_path / "copy", **engine)
    with pytest.raises(BackendError, match=problem):
        load(folder, allow_native_code=True)


def test_a_manifest_that_is_silent_on_its_engine(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["torch"], tmp_path / "copy")
    raw = json.loads((folder / "manifest.json").read_text())
    del raw["engine"]
    (folder / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(ArtifactError, match="does not say what its packages need"):
        load(folder, allow_native_code=True)


def test_without_torch(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BackendError, match="pip install torch"):
        load(folders["torch"], allow_native_code=True)
