"""`spec-compile bench`: a latency table of bundles, with target-only decoding as the baseline."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from spec_compile.bench import BenchOptions, bench_bundles
from spec_compile.benchmarking.measure import TARGET_ONLY
from spec_compile.commands.progress import ProgressBar
from spec_compile.commands.sampling_arguments import (
    add_adaptive_argument,
    add_sampling_arguments,
    given_sampling,
)
from spec_compile.prompts import read_prompt_file

_HEADINGS = (
    "bundle",
    "mode",
    "tokens/s",
    "speed-up",
    "TTFT ms",
    "TPOT ms p50",
    "p90",
    "p99",
    "block eff.",
    "accepted",
    "histogram",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bench`."""
    default = BenchOptions()
    parser.add_argument("bundles", metavar="BUNDLE", nargs="+", help="folders that export wrote")
    parser.add_argument("--prompt-file", metavar="F", help="prompts, one a line, or a .json list")
    for name, text in (
        ("max-new-tokens", "tokens for each prompt; EOS does not end them"),
        ("repeat", "measured passes; figures are their medians"),
        ("warm-up", "passes before them"),
        ("batch-size", "prompts decoded side by side"),
        ("seed", "of the random numbers"),
    ):
        value = getattr(default, name.replace("-", "_"))
        help_text = f"{text} (default %(default)s)"
        parser.add_argument(f"--{name}", type=int, default=value, metavar="N", help=help_text)
    add_sampling_arguments(parser)
    add_adaptive_argument(parser)
    parser.add_argument("--num-threads", type=int, metavar="N", help="threads of the engine")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--no-verify-hash", action="store_true", help="skip the SHA-256 checks")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    options = BenchOptions(
        prompts=read_prompt_file(args.prompt_file) if args.prompt_file else None,
        max_new_tokens=args.max_new_tokens,
        repeat=args.repeat,
        warm_up=args.warm_up,
        batch_size=args.batch_size,
        num_threads=args.num_threads,
        seed=args.seed,
        verify_hash=not args.no_verify_hash,
        adaptive=args.adaptive,
        **given_sampling(args),
    )
    with ProgressBar(quiet=bool(args.quiet)) as progress:
        report = bench_bundles(args.bundles, options, progress)
    lines = [json.dumps(report)] if args.json else describe(report)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def describe(report: dict[str, Any]) -> Iterator[str]:
    """The lines that `bench` prints."""
    machine, work = report["machine"], report["workload"]
    yield (
        f"{machine['cpu']}, {machine['usable_cores']} cores, threads: {machine['num_threads']}; "
        + ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    )
    yield (
        f"{work['prompts']} prompts x {work['max_new_tokens']} tokens, "
        f"{work['batch_size']} at a time, temperature {work['temperature']:g}, "
        f"top-k {work['top_k']}, top-p {work['top_p']:g}, min-p {work['min_p']:g}; "
        f"medians of {work['repeat']} interleaved passes"
    )
    yield ""
    yield from table([_HEADINGS, *(_row(one) for one in report["results"])])
    if work["temperature"] == 0:
        yield ""
        for one in report["results"]:
            if one["mode"] == TARGET_ONLY:
                continue
            equal = f"{one['outputs_equal_to_target_only']}/{one['prompts']}"
            yield f"{one['bundle']}, {one['mode']}: {equal} outputs equal target-only decoding's"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows in aligned columns: text to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    tpot = one["tpot_ms"]
    return (
        one["bundle"],
        one["mode"],
        f"{one['tokens_per_second']:.1f}",
        f"{one['speed_up']:.2f}x",
        f"{one['ttft_ms']:.1f}",
        f"{tpot['median']:.2f}",
        f"{tpot['p90']:.2f}",
        f"{tpot['p99']:.2f}",
        f"{one['block_efficiency']:.2f}",
        f"{one['acceptance_rate']:.2f}",
        "/".join(map(str, one["acceptance_histogram"])),
    )
