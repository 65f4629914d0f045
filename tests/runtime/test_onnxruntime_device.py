"""ONNX Runtime on a device, up to the device: here the CPU's provider stands at its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_compile.cli import main
from spec_compile.errors import BackendError, ConfigError
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.engine import DEVICES
from spec_compile.runtime.engines.onnxruntime_device import (
    PROVIDERS,
    OnnxRuntimeDeviceEngine,
    Provider,
)
from spec_compile.runtime.loader import open_bundle
from tests.helpers.toy_bundle import Toy
from tests.helpers.toy_engines import write_toy_engines

ToyFolder = Callable[[Toy], Path]
CPU = Provider("CPUExecutionProvider", "cpu", None)


def decoder_of(folder: Path, *, cuda_graph: bool = False) -> Decoder:
    bundle = open_bundle(folder)
    return Decoder(bundle, OnnxRuntimeDeviceEngine(bundle, CPU, cuda_graph=cuda_graph), None)


@pytest.mark.parametrize("fusion", ["verify", "step"])
@pytest.mark.parametrize("speculative", [True, False])
@pytest.mark.parametrize("cuda_graph", [True, False])
def test_tokens_are_those_of_the_plain_engine(
    toy_folder: ToyFolder, fusion: str, speculative: bool, cuda_graph: bool
) -> None:
    folder = toy_folder(Toy(fusion=fusion))
    options: dict[str, Any] = {
        "max_new_tokens": 20,
        "temperature": 0.9,
        "seed": [1, 2],
        "speculative": speculative,
    }
    prompts = [[1, 2, 3], [4]]
    expected = load(folder).generate(prompts, **options)
    actual = decoder_of(folder, cuda_graph=cuda_graph).generate(prompts, **options)
    assert [one.token_ids for one in actual] == [one.token_ids for one in expected]


def test_caches_are_written_on_the_device(toy_folder: ToyFolder) -> None:
    """The same memory is bound before and after a write, and nothing of it comes back."""
    bundle = open_bundle(toy_folder(Toy()))
    engine = OnnxRuntimeDeviceEngine(bundle, CPU)
    spec = bundle.manifest.graphs["target"]
    buffers: dict[str, Any] = {}
    for tensor in (*spec.inputs, *spec.outputs):
        shape = tuple(size if isinstance(size, int) else 1 for size in tensor.shape)
        if tensor.alias_of is None:
            is_cache = any(tensor.name == cache.name for cache in spec.caches)
            make = engine.zeros if is_cache else np.zeros
            buffers[tensor.name] = make(shape, tensor.dtype)
    buffers["tokens"][:], buffers["num_new"][:], buffers["top_p"][:] = 3, 1, 1.0
    addresses = {cache.name: buffers[cache.name].data_ptr() for cache in spec.caches}
    run = engine.bind("target", buffers)
    run()
    for cache in spec.caches:
        assert buffers[cache.name].data_ptr() == addresses[cache.name]
        assert np.any(buffers[cache.name].numpy())
    assert buffers["num_emitted"].tolist() == [1]


def test_recordings_are_named_apart(toy_folder: ToyFolder) -> None:
    """A first run is never recorded; bindings have recordings of their own."""
    engine = OnnxRuntimeDeviceEngine(open_bundle(toy_folder(Toy())), CPU, cuda_graph=True)
    settings = [engine._run_settings() for _ in range(2)]
    ids = [[next(one).get_run_config_entry("gpu_graph_id") for _ in range(3)] for one in settings]
    assert ids == [["-1", "1", "1"], ["-1", "2", "2"]]


@pytest.mark.parametrize("device", [name for name in DEVICES if name != "cpu"])
def test_a_missing_provider_is_named(toy_folder: ToyFolder, device: str) -> None:
    with pytest.raises(BackendError, match=f"no {PROVIDERS[device].name}, only .*CPUExecution"):
        load(toy_folder(Toy()), device=device)


def test_a_provider_that_does_not_start_is_refused(
    toy_folder: ToyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime falls back in silence when a library of the device is missing."""
    decoder = decoder_of(toy_folder(Toy()))
    engine = decoder.engine
    assert isinstance(engine, OnnxRuntimeDeviceEngine)
    monkeypatch.setattr(engine, "_providers", lambda: ["CPUExecutionProvider"])
    engine.provider = replace(CPU, name="CUDAExecutionProvider")
    with pytest.raises(BackendError, match=r"could not start CUDA.* fell back to CPU"):
        decoder.generate([1])


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_what_providers_are_asked_for(toy_folder: ToyFolder, cuda_graph: bool) -> None:
    engine = OnnxRuntimeDeviceEngine(open_bundle(toy_folder(Toy())), CPU, cuda_graph=cuda_graph)
    assert engine._providers() == [("CPUExecutionProvider", {})]
    engine.provider = PROVIDERS["tensorrt"]
    graph = {"trt_cuda_graph_enable": "1"} if cuda_graph else {}
    assert engine._providers() == [("TensorrtExecutionProvider", {"device_id": "0", **graph})]


@pytest.mark.parametrize(
    "options,problem",
    [
        ({"device": "gpu"}, "choose one of cpu, cuda, tensorrt, tensorrt-rtx"),
        ({"cuda_graph": True}, "needs a device other than cpu"),
    ],
)
def test_devices_that_do_not_exist(
    toy_folder: ToyFolder, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(toy_folder(Toy()), **options)


def test_bundles_of_other_backends_say_themselves_where_they_run(tmp_path: Path) -> None:
    folder = write_toy_engines(Toy(), tmp_path / "bundle")
    with pytest.raises(ConfigError, match="this one was built for tensorrt-rtx"):
        load(folder, device="cuda")


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_commands_refuse_a_device_that_is_not_there(
    toy_folder: ToyFolder, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    folder = str(toy_folder(Toy()))
    prompt = ["--prompt-ids", "1"] if command == "generate" else []
    assert main([command, folder, "--device", "cuda", *prompt]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "CUDAExecutionProvider" in error
