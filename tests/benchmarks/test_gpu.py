"""`benchmarks/gpu.py` up to the device: what it does in which order, and that it notices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import gpu
from spec_compile.errors import BackendError
from spec_compile.runtime.api import load
from tests.helpers.toy_bundle import Toy, write_toy_bundle


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> Callable[[], gpu.Details]:
        def run() -> gpu.Details:
            self.now += seconds
            return {"done": True}

        return run


def fail() -> gpu.Details:
    raise BackendError("first line\nsecond line")


def test_without_a_device_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_driver() -> None:
        raise BackendError("no usable NVIDIA driver or device here")

    monkeypatch.setattr(gpu, "CudaDriver", no_driver)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 2
    assert capsys.readouterr().out == (
        "no GPU to measure on: no usable NVIDIA driver or device here\n"
    )


def test_steps_go_on_after_a_failure_and_stop_when_time_is_over() -> None:
    clock, said = Clock(), list[str]()
    steps = [
        gpu.Step("one", 10.0, clock.work(30.0)),
        gpu.Step("two", 10.0, fail),
        gpu.Step("three", 40.0, clock.work(1.0)),
        gpu.Step("four", 10.0, clock.work(1.0)),
    ]
    report = gpu.run_steps(steps, 60.0, said.append, clock)
    assert report == {
        "one": {"done": True, "seconds": 30.0},
        "two": {"failed": "first line", "seconds": 0.0},
        "three": {"skipped": "fewer than 40 s left"},
        "four": {"done": True, "seconds": 1.0},
    }
    assert [line.partition(":")[0] for line in said] == list(report)


def test_the_steps_fit_into_their_time(tmp_path: Path) -> None:
    steps = gpu.GpuRun("llama", "small", tmp_path, "8.9").steps()
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    assert sum(step.least_seconds for step in steps) <= 8 * 60
    for name in ("check tensorrt-rtx-float16", "time tensorrt-rtx-float16"):
        assert names.index("build tensorrt-rtx-float16") < names.index(name)


def test_tokens_are_compared(tmp_path: Path) -> None:
    """Another draft leaves greedy tokens as they are, and changes what is sampled."""
    folders = [write_toy_bundle(Toy(draft=name), tmp_path / name) for name in ("good", "wrong")]
    first, second = (load(folder, num_threads=1) for folder in folders)
    assert gpu.same_tokens(first, first)["equal_tokens"] > 0
    with pytest.raises(AssertionError, match=r"row \d of \d at temperature 0\.8: \("):
        gpu.same_tokens(first, second)


def test_kernels_are_compared() -> None:
    """On the CPU both sides are the tensor functions, so nothing differs."""
    assert gpu.check_kernels("cpu") == {"rounds": 32, "rounds_that_differ": 0}
