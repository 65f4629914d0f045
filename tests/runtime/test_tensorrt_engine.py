"""The TensorRT engine up to the driver: the same tokens, from memory bound and copied in order."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from spec_compile.cli import main
from spec_compile.errors import ArtifactError, BackendError
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.engines.cuda import CudaDriver
from spec_compile.runtime.engines.device_memory import MemoryPool, Shuttle
from spec_compile.runtime.engines.tensorrt import TensorRtEngine
from spec_compile.runtime.loader import open_bundle
from spec_compile.runtime.requests import Options
from tests.helpers.fake_device import FakeDriver, FakeTensorRt
from tests.helpers.toy_bundle import Toy
from tests.helpers.toy_engines import write_toy_engines

LoadToy = Callable[[Toy], Decoder]
EngineFolder = Callable[[Toy], Path]
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [3], [5, 1, 2]]


@pytest.fixture(scope="module")
def engine_folder(tmp_path_factory: pytest.TempPathFactory) -> EngineFolder:
    @cache
    def build(toy: Toy) -> Path:
        return write_toy_engines(toy, tmp_path_factory.mktemp("engines") / "bundle")

    return build


def open_toy(folder: Path, driver: FakeDriver, trt: FakeTensorRt | None = None) -> Decoder:
    bundle = open_bundle(folder)
    engine = TensorRtEngine(bundle, driver=driver, trt=trt or FakeTensorRt(driver))
    return Decoder(bundle, engine, None)


@pytest.mark.parametrize("acceptance", ["rejection", "greedy"])
@pytest.mark.parametrize("fusion", ["verify", "step"])
@pytest.mark.parametrize("speculative", [True, False])
def test_tokens_are_those_of_onnx_runtime(
    load_toy: LoadToy, engine_folder: EngineFolder, acceptance: str, fusion: str, speculative: bool
) -> None:
    """Every cache write of a round has to be in the one memory, in order, and no row astray."""
    toy = Toy(acceptance=acceptance, fusion=fusion)
    options = Options(max_new_tokens=25, seed=3, ignore_eos=True, speculative=speculative)
    if acceptance == "rejection":
        options["temperature"] = 0.8
    expected = load_toy(toy).generate(PROMPTS, **options)
    decoder = open_toy(engine_folder(toy), FakeDriver())
    actual = decoder.generate(PROMPTS, **options)
    assert [r.token_ids for r in actual] == [r.token_ids for r in expected]
    assert [r.stats.num_rounds for r in actual] == [r.stats.num_rounds for r in expected]


@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_rounds_are_replayed(engine_folder: EngineFolder, fusion: str) -> None:
    """Prompt and first round run piece by piece, the second is recorded, the others replay it."""
    driver = FakeDriver()
    decoder = open_toy(engine_folder(Toy(fusion=fusion)), driver)
    result = decoder.generate(PROMPTS[0], max_new_tokens=20, ignore_eos=True)
    graphs, rounds = (2 if fusion == "verify" else 1), result.stats.num_rounds
    assert rounds > 3
    assert driver.calls.count("execute") == 3 * graphs
    assert driver.calls.count("capture") == graphs
    assert driver.calls.count("replay") == (rounds - 2) * graphs
    assert driver.calls.count("synchronize") == rounds


def test_inspect_says_what_runs_the_engines(
    engine_folder: EngineFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(engine_folder(Toy()))]) == 0
    text = capsys.readouterr().out
    assert "needs        tensorrt_rtx 1.7.1.116\n" in text
    assert "nodes" not in text


def test_only_tokens_and_counts_come_back(engine_folder: EngineFolder) -> None:
    driver = FakeDriver()
    toy = Toy(fusion="step")
    decoder = open_toy(engine_folder(toy), driver)
    copied: list[int] = []
    to_host = driver.to_host

    def counting(target: NDArray[np.uint8], address: int, stream: int) -> None:
        copied.append(target.nbytes)
        to_host(target, address, stream)

    driver.to_host = counting  # type: ignore[method-assign]
    decoder.generate(PROMPTS, max_new_tokens=9, ignore_eos=True)
    # output_tokens [3, k + 1] and num_emitted [3] in int64, each padded to 256 bytes
    assert set(copied) == {512}


@pytest.mark.parametrize("way", ["says no", "fails"])
def test_without_capture_every_round_is_enqueued(engine_folder: EngineFolder, way: str) -> None:
    toy = Toy(fusion="step")
    driver = FakeDriver()
    driver.refuse_capture = way == "fails"
    trt = FakeTensorRt(driver, capturable=way == "fails")
    decoder = open_toy(engine_folder(toy), driver, trt)
    result = decoder.generate([1, 2], max_new_tokens=12, ignore_eos=True)
    assert list(result.token_ids) == toy.target.greedy([1, 2], 12)
    assert driver.calls.count("capture") == (1 if way == "fails" else 0)
    assert driver.calls.count("execute") == result.stats.num_rounds


def test_interleaved_generations_do_not_disturb_each_other(engine_folder: EngineFolder) -> None:
    """They share contexts: a recording must not be made of, or with, the other one's buffers."""
    toy = Toy(fusion="verify")
    decoder = open_toy(engine_folder(toy), FakeDriver())
    prompts = [[1, 2, 3, 4, 5, 6], [7, 2]]
    streams = [
        decoder.stream_tokens(prompt, max_new_tokens=16, ignore_eos=True) for prompt in prompts
    ]
    outputs: list[list[int]] = [[], []]
    for _ in range(16):
        for output, stream in zip(outputs, streams, strict=True):
            output.append(next(stream))
    assert outputs == [toy.target.greedy(prompt, 16) for prompt in prompts]


def test_profiles_and_kernels(engine_folder: EngineFolder) -> None:
    driver = FakeDriver()
    trt = FakeTensorRt(driver)
    decoder = open_toy(engine_folder(Toy(fusion="step")), driver, trt)
    decoder.generate(PROMPTS[0], max_new_tokens=8)
    assert [(c.profile, c.strategy) for c in trt.contexts] == [(1, "LAZY"), (0, "EAGER")]
    decoder.generate(PROMPTS[1], max_new_tokens=8)
    assert len(trt.contexts) == 2


def test_memory_is_used_again_and_recordings_forgotten(engine_folder: EngineFolder) -> None:
    driver = FakeDriver()
    decoder = open_toy(engine_folder(Toy()), driver)
    decoder.generate(PROMPTS, max_new_tokens=12, ignore_eos=True)
    gc.collect()
    allocated = len(driver.memory)
    for _ in range(3):
        decoder.generate(PROMPTS, max_new_tokens=12, ignore_eos=True)
        gc.collect()
    assert len(driver.memory) == allocated
    assert not any(driver.recordings.values())


def test_a_full_device_is_one_line(engine_folder: EngineFolder) -> None:
    decoder = open_toy(engine_folder(Toy()), FakeDriver(capacity=3_000))
    with pytest.raises(BackendError, match="not enough memory for 3 rows"):
        decoder.generate(PROMPTS, max_new_tokens=12)


def test_logits_come_back_when_asked_for(load_toy: LoadToy, engine_folder: EngineFolder) -> None:
    decoder = open_toy(engine_folder(Toy()), FakeDriver())
    expected = load_toy(Toy()).next_logits([1, 2, 3])
    np.testing.assert_array_equal(decoder.next_logits([1, 2, 3]), expected)


def test_another_version_is_refused(engine_folder: EngineFolder) -> None:
    driver = FakeDriver()
    with pytest.raises(BackendError, match=r"tensorrt_rtx 1\.7\.1\.116, here is 1\.8\.0"):
        open_toy(engine_folder(Toy()), driver, FakeTensorRt(driver, version="1.8.0"))


def test_another_device_is_refused(tmp_path: Path) -> None:
    folder = write_toy_engines(Toy(), tmp_path / "bundle", capabilities=("8.9", "12.0"))
    driver = FakeDriver(capability="7.5")
    with pytest.raises(BackendError, match=r"for compute capability 8\.9, 12\.0.*has 7\.5"):
        open_toy(folder, driver)
    open_toy(folder, FakeDriver(capability="12.0"))


def test_a_damaged_engine_is_one_line(tmp_path: Path) -> None:
    folder = write_toy_engines(Toy(), tmp_path / "bundle")
    path = folder / "verify.engine"
    path.write_bytes(b"x" * path.stat().st_size)
    bundle = open_bundle(folder, verify_hash=False)
    driver = FakeDriver()
    decoder = Decoder(bundle, TensorRtEngine(bundle, driver=driver, trt=FakeTensorRt(driver)), None)
    with pytest.raises(BackendError, match=r"verify\.engine: .* cannot load it.*damaged") as error:
        decoder.generate([1], max_new_tokens=1)
    assert "\n" not in str(error.value)


def test_an_engine_of_other_tensors_is_refused(tmp_path: Path) -> None:
    folder = write_toy_engines(Toy(), tmp_path / "bundle")
    (folder / "verify.engine").write_bytes((folder / "target.engine").read_bytes())
    raw = json.loads((folder / "manifest.json").read_text())
    raw["files"]["verify.engine"] = raw["files"]["target.engine"]
    (folder / "manifest.json").write_text(json.dumps(raw))
    decoder = open_toy(folder, FakeDriver())
    with pytest.raises(ArtifactError, match="tensors are not the manifest's"):
        decoder.generate([1], max_new_tokens=1)


def test_a_bundle_that_names_no_package(tmp_path: Path) -> None:
    folder = write_toy_engines(Toy(), tmp_path / "bundle")
    raw = json.loads((folder / "manifest.json").read_text())
    raw["engine"]["package"] = "os"  # never imported
    (folder / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(ArtifactError, match="does not name the package"):
        load(folder)


def test_without_the_package(engine_folder: EngineFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(BackendError, match=r"pip install 'spec-compile\[tensorrt-rtx\]'"):
        load(engine_folder(Toy()))


def test_without_cuda_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    with pytest.raises(BackendError, match="cuda-bindings is not installed"):
        CudaDriver()


def test_the_shuttle_moves_arrays_side_by_side() -> None:
    driver = FakeDriver()
    pool = MemoryPool(driver)
    first, second = np.arange(5, dtype=np.int64), np.ones((2, 3), dtype=np.float32)
    shuttle = Shuttle(driver, pool, {"first": first, "second": second})
    assert shuttle.addresses["second"] - shuttle.addresses["first"] == 256
    shuttle.read_arrays()
    shuttle.to_device(7)
    driver.synchronize(7)
    raw = driver.view(shuttle.addresses["first"], first.nbytes)
    np.testing.assert_array_equal(raw.view(np.int64), first)
    first[:], second[:] = 0, 0
    shuttle.to_host(7)
    driver.synchronize(7)
    shuttle.write_arrays()
    assert first.tolist() == [0, 1, 2, 3, 4] and second.sum() == 6


def test_the_pool_gives_back_before_it_gives_up() -> None:
    driver = FakeDriver(capacity=4096)
    pool = MemoryPool(driver)
    small = pool.buffer((100,), "float32")
    address = small.address
    del small
    gc.collect()
    again = pool.buffer((100,), "float32")
    assert again.address == address
    del again
    gc.collect()
    assert pool.buffer((1024,), "float32").nbytes == 4096
    assert address not in driver.memory
