"""One pair on every engine of this machine, in one interleaved run.

    python benchmarks/backends.py --target T --draft D [-k 4] [--acceptance block]
        [--fusion verify] [--max-new-tokens 128] [--repeat 3] [--num-threads N] [--skip NAME]...

Rows: the fused graphs in torch eager, by torch.compile and by AOTInductor; ONNX Runtime in float32,
int8 and int4. All decode the same prompts through the same loop; each has its own target-only
baseline. Engines that are missing here are listed with the reason. Building takes minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.figures.report import Cell, Figure
from benchmarks.figures.torch_modules import TorchModules
from spec_compile.benchmarking.availability import unavailable_engines
from spec_compile.benchmarking.measure import Workload, run_interleaved, variants_of
from spec_compile.checking.contexts import bench_prompts
from spec_compile.config import SpecConfig
from spec_compile.driver import capture_pair, compile, open_pair, run_pipeline
from spec_compile.kernels.ops import HAS_TRITON
from spec_compile.program import Program
from spec_compile.runtime.api import Decoder, load

BUNDLES: Mapping[str, dict[str, Any]] = {
    "AOTInductor": {"backend": "torch"},
    "ONNX Runtime float32": {},
    "ONNX Runtime int8": {"quantize": "int8"},
    "ONNX Runtime int4": {"quantize": "int4"},
}
MODULES = {"torch eager": False, "torch.compile": True}
_COLUMNS = ("engine", "mode", "tokens/s", "speed-up", "TTFT ms", "TPOT ms", "tokens a round", "s")


def main() -> None:
    """Build, measure and print."""
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as scratch:
        figure = measure(arguments, Path(scratch))
    print(figure.to_json() if arguments.json else figure.to_markdown())
    if not arguments.json:
        print()
        for name, reason in figure.data["not_available"].items():
            print(f"{name}: not available: {reason}")


def parse_arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="llama")
    parser.add_argument("--draft", default="small")
    parser.add_argument("-k", "--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--acceptance", default="block")
    parser.add_argument("--fusion", default="verify")
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--num-threads", type=int)
    names = [*MODULES, *BUNDLES]
    parser.add_argument(
        "--skip", action="append", default=[], choices=names, help="leave out a row"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args(given)


def measure(arguments: argparse.Namespace, scratch: Path) -> Figure:
    """All rows of one run."""
    config = SpecConfig(
        num_speculative_tokens=arguments.num_speculative_tokens,
        acceptance=arguments.acceptance,
        fusion=arguments.fusion,
        max_length=arguments.max_length,
        batch_size=1,
    )
    decoders, seconds = build(arguments, config, scratch)
    options = {"max_new_tokens": arguments.max_new_tokens, "temperature": arguments.temperature}
    options |= {"seed": 0, "ignore_eos": True}
    prompts = bench_prompts(next(iter(decoders.values())), None, 0)
    workload = Workload([[p] for p in prompts], options, arguments.repeat, arguments.warm_up)  # type: ignore[arg-type]
    pairs = [variants_of(name, decoder) for name, decoder in decoders.items()]
    run_interleaved([one for pair in pairs for one in pair], workload, lambda *_: None)
    figures = [one.figures(pair[0]) for pair in pairs for one in pair]
    title = (
        f"{arguments.target} and {arguments.draft}, k = {config.num_speculative_tokens}, "
        f"{config.acceptance}, {config.fusion}: {len(prompts)} prompts of "
        f"{arguments.max_new_tokens} tokens, temperature {arguments.temperature:g}"
    )
    data = {"results": figures, "build_seconds": seconds, "not_available": not_available()}
    rows = [_row(one, seconds[one["bundle"]]) for one in figures]
    return Figure(title, _COLUMNS, rows, data, arguments.num_threads)


def build(
    arguments: argparse.Namespace, config: SpecConfig, scratch: Path
) -> tuple[dict[str, Decoder], dict[str, float]]:
    """A decoder for each row, and what it took to build."""
    decoders: dict[str, Decoder] = {}
    seconds: dict[str, float] = {}

    def timed(name: str, make: Callable[[], Decoder]) -> None:
        if name not in arguments.skip:
            started = time.perf_counter()
            decoders[name] = make()
            seconds[name] = time.perf_counter() - started

    fixed = replace(config, backend="torch")  # its graphs are those of the modules, too
    program = _program(arguments, fixed)
    reference: dict[str, Decoder] = {}
    for number, (name, changes) in enumerate(BUNDLES.items()):

        def bundle(changes: Mapping[str, Any] = changes, number: int = number) -> Decoder:
            folder = scratch / str(number)
            compile(arguments.target, arguments.draft, folder, replace(config, **changes))
            return load(folder, num_threads=arguments.num_threads, allow_native_code=True)

        timed(name, bundle)
        reference |= {"any": decoders[name]} if name in decoders else {}
    for name, compiled in MODULES.items():

        def modules(compiled: bool = compiled) -> Decoder:
            one = reference["any"]
            return Decoder(one.bundle, TorchModules(program, compiled=compiled), one.tokenizer)

        timed(name, modules)
    return decoders, seconds


def not_available() -> dict[str, str]:
    """Engines that this machine cannot run, the kernels included, with the reason."""
    found = unavailable_engines()
    if not HAS_TRITON:
        found["Triton kernels"] = "the package triton is not installed"
    else:
        import torch

        if not torch.cuda.is_available():
            found["Triton kernels"] = "torch finds no CUDA device"
    return found


def _program(arguments: argparse.Namespace, config: SpecConfig) -> Program:
    pair = open_pair(arguments.target, arguments.draft)
    return run_pipeline(capture_pair(pair, config), config)


def _row(one: dict[str, Any], seconds: float) -> list[Cell]:
    return [
        one["bundle"],
        one["mode"],
        f"{one['tokens_per_second']:.1f}",
        f"{one['speed_up']:.2f}x",
        f"{one['ttft_ms']:.1f}",
        f"{one['tpot_ms']['median']:.2f}",
        f"{one['block_efficiency']:.2f}",
        f"{seconds:.0f}",
    ]


if __name__ == "__main__":
    main()
