"""Everything that a CUDA device can run: built, checked and timed, in at most eight minutes.

    python benchmarks/gpu.py [--target T --draft D] [--minutes 8] [-o REPORT.json]

Each step says what it found. A step that fails, or for which the time is over, is named with the
reason, and the next one goes on. Without a device nothing is started. Needs the extras `compile`,
`gpu`, `tensorrt-rtx` and `triton`; steps whose extra is missing say so.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from spec_compile.bench import BenchOptions, bench_bundles
from spec_compile.check import CheckOptions, check_bundle
from spec_compile.checking.result import FAILED
from spec_compile.config import SpecConfig
from spec_compile.driver import compile
from spec_compile.errors import BackendError, SpecCompileError
from spec_compile.kernels import ops, reference
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.engines.cuda import CudaDriver

PROMPT = [1, 2, 3, 4, 5]
Details = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One thing to do.

    Args:
        name: what it is called.
        least_seconds: with less time than this left it is not begun.
        work: does it, and returns what it found.
    """

    name: str
    least_seconds: float
    work: Callable[[], Details]


def main() -> int:
    """Run every step; 0 when all went well, 1 when one failed, 2 without a device."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="llama")
    parser.add_argument("--draft", default="small")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("-o", "--output", type=Path, help="also write all figures here, as JSON")
    arguments = parser.parse_args()
    try:
        capability = CudaDriver().compute_capability()
    except BackendError as error:
        print(f"no GPU to measure on: {error}")
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        run = GpuRun(arguments.target, arguments.draft, Path(scratch), capability)
        report = run_steps(run.steps(), time.monotonic() + 60.0 * arguments.minutes, print)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if any("failed" in found for found in report.values()) else 0


def run_steps(
    steps: Sequence[Step],
    deadline: float,
    say: Callable[[str], object],
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, dict[str, Any]]:
    """Do the steps in order while time is left; what each found, by name."""
    report: dict[str, dict[str, Any]] = {}
    for step in steps:
        started = clock()
        if deadline - started < step.least_seconds:
            report[step.name] = {"skipped": f"fewer than {step.least_seconds:.0f} s left"}
        else:
            try:
                report[step.name] = dict(step.work())
            except (SpecCompileError, RuntimeError, ImportError, AssertionError) as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                report[step.name] = {"failed": lines[0][:300]}
            report[step.name]["seconds"] = round(clock() - started, 1)
        say(f"{step.name}: {json.dumps(report[step.name])}")
    return report


class GpuRun:
    """The steps over one pair.

    Args:
        target: preset, folder or hub id.
        draft: the same.
        folder: where bundles go.
        capability: of the device, as "8.9".
    """

    def __init__(self, target: str, draft: str, folder: Path, capability: str) -> None:
        self._pair, self._folder, self._capability = (target, draft), folder, capability

    def steps(self) -> list[Step]:
        """Small and certain ones first."""
        found = [Step("Triton kernels against the reference", 20.0, check_kernels)]
        build = partial(self._build, "onnxruntime", "float32")
        found.append(Step("build onnxruntime", 40.0, build))
        for device in ("cuda", "tensorrt-rtx"):
            name = f"tokens of onnxruntime on {device}"
            found.append(Step(name, 20.0, partial(self._device, device)))
        for dtype in ("float32", "float16"):
            bundle = f"tensorrt-rtx-{dtype}"
            build = partial(self._build, "tensorrt-rtx", dtype)
            found += [
                Step(f"build {bundle}", 60.0, build),
                Step(f"check {bundle}", 40.0, partial(self._check, bundle)),
                Step(f"time {bundle}", 40.0, partial(self._time, bundle)),
            ]
        found.append(Step("tokens of tensorrt-rtx", 20.0, self._parity))
        return found

    def _build(self, backend: str, dtype: str) -> Details:
        targets = (self._capability,) if backend == "tensorrt-rtx" else ()
        config = SpecConfig(
            acceptance="rejection",
            fusion="step",
            backend=backend,
            dtype=dtype,
            max_length=512,
            batch_size=4,
            compute_capabilities=targets,
        )
        folder = compile(*self._pair, self._folder / f"{backend}-{dtype}", config)
        return {"bytes": sum(file.stat().st_size for file in folder.iterdir())}

    def _device(self, device: str) -> Details:
        folder = self._folder / "onnxruntime-float32"
        return same_tokens(load(folder), load(folder, device=device))

    def _parity(self) -> Details:
        plain, engine = ("onnxruntime-float32", "tensorrt-rtx-float32")
        return same_tokens(load(self._folder / plain), load(self._folder / engine))

    def _check(self, bundle: str) -> Details:
        report = check_bundle(self._folder / bundle, CheckOptions(target=self._pair[0]))
        if not report.passed:
            failed = [one for one in report.results if one.status == FAILED]
            raise AssertionError("; ".join(f"{one.name}: {one.detail}" for one in failed))
        return {one.name: one.detail for one in report.results}

    def _time(self, bundle: str) -> Details:
        options = BenchOptions(repeat=3, warm_up=1, memory=False)
        keys = ("mode", "tokens_per_second", "speed_up", "tpot_ms", "block_efficiency")
        found = bench_bundles([self._folder / bundle], options)["results"]
        return {"results": [{key: one[key] for key in keys} for one in found]}


def same_tokens(expected: Decoder, actual: Decoder) -> Details:
    """Generate by both, greedily and sampled, over one row and several.

    Raises:
        AssertionError: they differ; the message says where.
    """
    prompts = [PROMPT, PROMPT[:2], [token + 7 for token in PROMPT]]
    compared = 0
    for temperature in (0.0, 0.8):
        options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 48, "seed": 1}
        for group in ([PROMPT], prompts):
            first, second = (one.generate(group, **options) for one in (expected, actual))
            for row, (one, other) in enumerate(zip(first, second, strict=True)):
                compared += len(one.token_ids)
                if one.token_ids != other.token_ids:
                    raise AssertionError(
                        f"row {row} of {len(group)} at temperature {temperature:g}: "
                        f"{one.token_ids} and {other.token_ids}"
                    )
    return {"equal_tokens": compared}


def check_kernels(device: str = "cuda") -> Details:
    """The Triton kernels against tensor functions on the same numbers.

    Raises:
        AssertionError: tokens differ beyond what rounding ties explain.
        ImportError: no triton.
    """
    if not ops.HAS_TRITON and device == "cuda":
        raise ImportError("the package triton is not installed")
    generator = torch.Generator().manual_seed(0)
    rounds = differing = 0
    for vocab_size in (1000, 49152):
        logits = 3.0 * torch.randn(16, 5, vocab_size, generator=generator)
        drafts = torch.softmax(3.0 * torch.randn(16, 4, vocab_size, generator=generator), dim=-1)
        tokens = torch.multinomial(drafts.flatten(0, 1), 1, generator=generator).reshape(16, 4)
        uniforms = torch.rand(16, 5, generator=generator)
        temperature = torch.ones(16)
        given = [t.to(device) for t in (logits, tokens, drafts, temperature, uniforms)]
        actual = ops.accept_rejection(*given)[0].cpu()
        sampling = reference.temperature_only(temperature)
        expected, _ = reference.accept_rejection(logits, tokens, drafts, sampling, uniforms)
        rounds += len(logits)
        differing += int((actual != expected).any(dim=1).sum())
    if differing > rounds // 16:
        raise AssertionError(f"{differing} of {rounds} rounds differ: too many for ties")
    return {"rounds": rounds, "rounds_that_differ": differing}


if __name__ == "__main__":
    sys.exit(main())
