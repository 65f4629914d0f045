"""`spec-compile bench`: a latency table of bundles, with target-only decoding as the baseline."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spec_compile.bench import BenchOptions, bench_bundles
from spec_compile.benchmarking.html_report import render
from spec_compile.benchmarking.measure import TARGET_ONLY
from spec_compile.benchmarking.picture import draw, require_matplotlib
from spec_compile.commands.lists import integers
from spec_compile.commands.progress import ProgressBar
from spec_compile.commands.sampling_arguments import add_adaptive_argument, add_sampling_arguments
from spec_compile.commands.tables import table
from spec_compile.errors import ConfigError
from spec_compile.prompts import read_prompt_file
from spec_compile.runtime.engine import DEVICES

_HEADINGS = (
    "bundle",
    "mode",
    "rows",
    "temp.",
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


_PHASE_HEADINGS = ("bundle", "a round's calls, ms", "host", "kept by position", "predicted")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bench`."""
    default = BenchOptions()
    parser.add_argument("bundles", metavar="BUNDLE", nargs="+", help="folders that export wrote")
    parser.add_argument("--prompt-file", metavar="F", help="prompts, one a line, or a .json list")
    for name, text in (
        ("max-new-tokens", "tokens for each prompt; EOS does not end them"),
        ("repeat", "measured passes; figures are their medians"),
        ("warm-up", "passes before them"),
        ("seed", "of the random numbers"),
    ):
        value = getattr(default, name.replace("-", "_"))
        help_text = f"{text} (default %(default)s)"
        parser.add_argument(f"--{name}", type=int, default=value, metavar="N", help=help_text)
    parser.add_argument(
        "--batch-size",
        type=integers,
        default=default.batch_sizes,
        metavar="N,N",
        help="prompts decoded side by side; each is measured (default 1)",
    )
    add_sampling_arguments(parser, several=True)
    add_adaptive_argument(parser)
    parser.add_argument("--plot", metavar="F", help="write charts to this file, .html or .png")
    parser.add_argument(
        "--predict",
        action="store_true",
        help="also foresee each speed-up as plan does; with --plot and several k always",
    )
    parser.add_argument("--no-memory", action="store_true", help="do not measure peak memory")
    parser.add_argument("--num-threads", type=int, metavar="N", help="threads of the engine")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where the graphs run")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--no-verify-hash", action="store_true", help="skip the SHA-256 checks")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    default = BenchOptions()
    options = BenchOptions(
        prompts=read_prompt_file(args.prompt_file) if args.prompt_file else None,
        max_new_tokens=args.max_new_tokens,
        repeat=args.repeat,
        warm_up=args.warm_up,
        batch_sizes=args.batch_size,
        num_threads=args.num_threads,
        device=args.device,
        seed=args.seed,
        verify_hash=not args.no_verify_hash,
        memory=not args.no_memory,
        predict=None if args.plot and not args.predict else args.predict,
        adaptive=args.adaptive,
        temperatures=args.temperature or default.temperatures,
        top_k=default.top_k if args.top_k is None else args.top_k,
        top_p=default.top_p if args.top_p is None else args.top_p,
        min_p=default.min_p if args.min_p is None else args.min_p,
    )
    page = _page(args.plot)
    with ProgressBar(quiet=bool(args.quiet)) as progress:
        report = bench_bundles(args.bundles, options, progress)
    lines = [json.dumps(report)] if args.json else describe(report)
    sys.stdout.write("\n".join(lines) + "\n")
    if page is not None and page.suffix.lower() == ".png":
        draw(report, page)
    elif page is not None:
        page.write_text(render(report), encoding="utf-8")
    return 0


def _page(name: str | None) -> Path | None:
    """Where the page goes: refused before anything is measured."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix.lower() not in (".html", ".htm", ".png"):
        raise ConfigError(f"--plot {name}: give a name that ends in .html or .png")
    if path.suffix.lower() == ".png":
        require_matplotlib()
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError(f"--plot {name}: no such folder, or a folder itself")
    return path


def describe(report: dict[str, Any]) -> Iterator[str]:
    """The lines that `bench` prints."""
    machine, work = report["machine"], report["workload"]
    yield (
        f"{machine['cpu']}, {machine['usable_cores']} cores, threads: {machine['num_threads']}; "
        + ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    )
    yield (
        f"{work['prompts']} prompts x {work['max_new_tokens']} tokens, "
        f"top-k {work['top_k']}, top-p {work['top_p']:g}, min-p {work['min_p']:g}; "
        f"medians of {work['repeat']} interleaved passes"
    )
    yield ""
    yield from table([_HEADINGS, *(_row(one) for one in report["results"])])
    yield ""
    yield from table([_PHASE_HEADINGS, *(_phase_row(one) for one in report["results"])])
    if any(one["temperature"] == 0 for one in report["results"]):
        yield ""
    for one in report["results"]:
        if one["mode"] != TARGET_ONLY and one["temperature"] == 0:
            equal = f"{one['outputs_equal_to_target_only']}/{one['prompts']}"
            rows = f", {one['batch_size']} rows" if one["batch_size"] > 1 else ""
            bundle = f"{one['bundle']}, {one['mode']}{rows}"
            yield f"{bundle}: {equal} outputs equal target-only decoding's"
    if report["not_available"]:
        yield ""
    for engine, reason in report["not_available"].items():
        yield f"{engine}: not available: {reason}"


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    tpot = one["tpot_ms"]
    return (
        one["bundle"],
        one["mode"] if one["exact"] else f"{one['mode']} (approximate)",
        str(one["batch_size"]),
        f"{one['temperature']:g}",
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


def _phase_row(one: dict[str, Any]) -> tuple[str, ...]:
    phases, kept = one["phases_ms"], one["acceptance_by_position"]
    calls = [f"{graph} {call['median']:.2f}" for graph, call in phases["calls"].items()]
    predicted = one.get("predicted_speed_up")
    return (
        f"{one['bundle']} ({one['mode']}, rows {one['batch_size']}, {one['temperature']:g})",
        " + ".join(calls),
        f"{phases['host']:.2f}",
        "/".join(f"{share:.2f}" for share in kept),
        "" if predicted is None else f"{predicted:.2f}x",
    )
