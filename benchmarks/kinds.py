"""Every way of drafting against target-only decoding, by kind of prompt.

    python benchmarks/kinds.py distilled=B1 lookup=B2 ... [--temperature 0 1] [--json F]

The bundles share one target; the first one's `target` graph is the baseline. Prompts are those of
`benchmarks/peers/prompts.json`: chat, code, prose, and rewriting that repeats most of its prompt.
Each prompt goes through all variants in turn; where rounds may have any length, adaptive drafting
is a variant too. Prints one Markdown table: tokens per second and the ratio to the baseline.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.figures.report import Cell, Figure
from benchmarks.peers.prompts import DEFAULT_FILE, KINDS, encode, read_prompts
from spec_compile.benchmarking.measure import (
    ADAPTIVE,
    SPECULATIVE,
    TARGET_ONLY,
    Variant,
    Workload,
    run_interleaved,
    variants_of,
)
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.requests import Options


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundles", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--target", type=Path, required=True, help="checkpoint, for its tokenizer")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--num-prompts", type=int, default=3, help="of each kind")
    parser.add_argument("--repeat", type=int, default=1, help="measured passes")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--json", type=Path, metavar="F", help="write every number there")
    arguments = parser.parse_args()
    figure = measure(arguments)
    print(figure.to_markdown())
    if arguments.json:
        arguments.json.write_text(figure.to_json(), encoding="utf-8")


def measure(arguments: argparse.Namespace) -> Figure:
    """The table over all kinds and temperatures."""
    decoders = {
        name: load(folder, num_threads=arguments.num_threads)
        for name, folder in (one.split("=", 1) for one in arguments.bundles)
    }
    by_kind = prompts_by_kind(arguments.target, arguments.num_prompts)
    rows: list[list[Cell]] = []
    data: dict[str, Any] = {}
    for temperature in arguments.temperature:
        for kind, prompts in by_kind.items():
            options: Options = {
                "temperature": temperature,
                "max_new_tokens": arguments.max_new_tokens,
                "ignore_eos": True,
                "seed": 0,
            }
            work = Workload([[one] for one in prompts], options, arguments.repeat, 0)
            variants = variants_in_turn(decoders)
            if not data:
                warm_up = Workload(work.groups[:1], {**options, "max_new_tokens": 16}, 1, 0)
                run_interleaved(variants, warm_up, lambda *_: None)
                variants = variants_in_turn(decoders)
            run_interleaved(variants, work, lambda *_: None)
            rows += [_row(temperature, kind, one, variants[0]) for one in variants]
            data[f"{kind} {temperature:g}"] = {
                f"{one.bundle} {one.mode}": one.figures(variants[0]) for one in variants
            }
    columns = ["temperature", "prompts", "draft", "mode", "tokens/s", "of target-only"]
    columns += ["block efficiency", "acceptance", "host ms a round"]
    title = f"{arguments.num_prompts} prompts of each kind x {arguments.max_new_tokens} tokens"
    return Figure(title, columns, rows, data, arguments.num_threads)


def prompts_by_kind(target: Path, count: int) -> dict[str, list[list[int]]]:
    """Token ids of the first `count` prompts of each kind."""
    prompts = read_prompts(DEFAULT_FILE)
    return {
        kind: encode([one for one in prompts if one.kind == kind][:count], target) for kind in KINDS
    }


def variants_in_turn(decoders: dict[str, Decoder]) -> list[Variant]:
    """The first bundle's target alone, then each bundle's own ways of speculating."""
    found: list[Variant] = []
    for name, decoder in decoders.items():
        verify = decoder.manifest.graphs.get("verify")
        adaptive = verify is not None and verify.takes_any_length
        wanted = (SPECULATIVE, ADAPTIVE) if found else (TARGET_ONLY, SPECULATIVE, ADAPTIVE)
        found += [
            one for one in variants_of(name, decoder, adaptive=adaptive) if one.mode in wanted
        ]
    return found


def _row(temperature: float, kind: str, one: Variant, baseline: Variant) -> list[Cell]:
    found = one.figures(baseline)
    return [
        f"{temperature:g}",
        kind,
        "" if one.mode == TARGET_ONLY else one.bundle,
        one.mode,
        f"{found['tokens_per_second']:.1f}",
        f"{found['speed_up']:.2f}x",
        f"{found['block_efficiency']:.2f}",
        f"{found['acceptance_rate']:.2f}",
        f"{found['phases_ms']['host']:.2f}",
    ]


if __name__ == "__main__":
    main()
