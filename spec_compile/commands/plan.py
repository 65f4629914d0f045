"""`spec-compile plan`: measures a pair, and says which k, rule and number of drafts to export."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spec_compile.commands.compile_steps import CompileSteps
from spec_compile.commands.lists import floats, integers, names
from spec_compile.commands.progress import ProgressBar
from spec_compile.commands.tables import table
from spec_compile.config import ACCEPTANCE_RULES, QUANTIZATIONS, SpecConfig
from spec_compile.errors import ConfigError
from spec_compile.plan import PlanOptions, plan_bundles
from spec_compile.planning.models import WITHOUT_DRAFT_LAW, Choice, differs, exact_rules
from spec_compile.prompts import read_prompt_file

_LARGEST_K = 6
_SOURCES = {"measured": "", "interpolated": "", "estimated": "~"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `plan`."""
    default = PlanOptions()
    parser.add_argument(
        "bundles", metavar="BUNDLE", nargs="*", help="of one pair, exported with --fusion verify"
    )
    parser.add_argument("--target", metavar="T", help="instead of bundles: as for export")
    parser.add_argument("--draft", metavar="D", help="as for export")
    parser.add_argument(
        "-k",
        "--num-speculative-tokens",
        type=int,
        metavar="K",
        help=f"largest number of draft tokens to look at (default: the bundles', or {_LARGEST_K})",
    )
    parser.add_argument(
        "--quantize", metavar="TYPE", help=f"as for export: {', '.join(QUANTIZATIONS)}"
    )
    parser.add_argument("--quantize-draft", metavar="TYPE", help="as for export")
    parser.add_argument("--keep", metavar="DIR", help="folder to leave exported bundles in")
    for name, kind, text in (
        ("temperature", floats, "each gets a table; 0 is greedy"),
        ("num-drafts", integers, "numbers of drafts a round"),
    ):
        value = getattr(default, "temperatures" if name == "temperature" else "num_drafts")
        shown = ",".join(f"{one:g}" for one in value)
        parser.add_argument(
            f"--{name}", type=kind, default=value, metavar="N,N", help=f"{text} (default {shown})"
        )
    parser.add_argument(
        "--rules",
        type=names,
        metavar="R,R",
        help=f"of {', '.join(ACCEPTANCE_RULES)} (default: the exact ones)",
    )
    parser.add_argument("--prompt-file", metavar="F", help="prompts, one a line, or a .json list")
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=default.max_new_tokens,
        metavar="N",
        help="tokens that each prompt is continued by (default %(default)s)",
    )
    parser.add_argument("--top-k", type=int, default=0, metavar="N", help="0 is off")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="F", help="1 is off")
    parser.add_argument("--min-p", type=float, default=0.0, metavar="F", help="0 is off")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the texts (default 0)")
    parser.add_argument("--num-threads", type=int, metavar="N", help="threads of the engine")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--no-verify-hash", action="store_true", help="skip the SHA-256 checks")


def run(args: argparse.Namespace) -> int:
    """Export what has to be measured unless it is given, measure, print."""
    options = PlanOptions(
        prompts=read_prompt_file(args.prompt_file) if args.prompt_file else None,
        max_new_tokens=args.max_new_tokens,
        temperatures=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        rules=args.rules,
        num_drafts=args.num_drafts,
        max_speculative_tokens=args.num_speculative_tokens,
        num_threads=args.num_threads,
        seed=args.seed,
        verify_hash=not args.no_verify_hash,
    )
    _check_source(args)
    if args.bundles:
        report = _plan(args, args.bundles, options)
    else:
        with tempfile.TemporaryDirectory(prefix="spec-compile-plan-") as scratch:
            report = _plan(args, _export(args, Path(args.keep or scratch)), options)
    report["command"] = _command(args, report)
    lines = [json.dumps(report)] if args.json else describe(report)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _check_source(args: argparse.Namespace) -> None:
    pair = args.target, args.draft
    if args.bundles and any(one is not None for one in (*pair, args.keep)):
        raise ConfigError("give bundles, or --target and --draft, not both")
    if not args.bundles and None in pair:
        raise ConfigError("nothing to plan: give bundles, or --target and --draft")
    if args.bundles and (args.quantize or args.quantize_draft):
        raise ConfigError("--quantize is for --target and --draft; bundles have their weights")


def _plan(
    args: argparse.Namespace, bundles: Sequence[str | Path], options: PlanOptions
) -> dict[str, Any]:
    with ProgressBar(quiet=bool(args.quiet)) as progress:
        return plan_bundles(bundles, options, progress)


def _export(args: argparse.Namespace, folder: Path) -> list[Path]:
    """Bundles of the smallest and the largest k: every k between them has its cost from these.

    A rule that reads no law of the draft has a cheaper draft, which is measured by itself.
    """
    largest = args.num_speculative_tokens or _LARGEST_K
    wanted = {folder / f"k{k}": (k, "block") for k in sorted({1, largest})}
    if not set(args.rules or exact_rules()).isdisjoint(WITHOUT_DRAFT_LAW):
        wanted[folder / f"match-k{largest}"] = largest, "match"
    configs = {
        path: SpecConfig(
            num_speculative_tokens=k,
            acceptance=rule,
            quantize=args.quantize,
            quantize_draft=args.quantize_draft,
        )
        for path, (k, rule) in wanted.items()
    }
    # Imported here: a wrong option is refused at once, without the seconds that torch takes.
    from spec_compile.driver import compile, steps

    for path, config in configs.items():
        with CompileSteps(steps(config), args) as progress:
            compile(args.target, args.draft, path, config, progress=progress)
    return list(configs)


def _command(args: argparse.Namespace, report: dict[str, Any]) -> str | None:
    """The export that the plan recommends."""
    pick = report["pick"]
    if pick is None:
        return None
    config = next(iter(report["bundles"].values()))
    models = report["models"]
    words = [
        "spec-compile export",
        f"--target {args.target or models['target']}",
        f"--draft {args.draft or models['draft']}",
        f"-k {pick['num_speculative_tokens']}",
        f"--acceptance {pick['rule']}",
    ]
    if pick["num_drafts"] > 1:
        words.append(f"--num-drafts {pick['num_drafts']}")
    if config["quantize"]:
        words.append(f"--quantize {config['quantize']}")
    if config["quantize_draft"] != config["quantize"]:
        words.append(f"--quantize-draft {config['quantize_draft'] or 'none'}")
    return " ".join([*words, "-o bundle/"])


def describe(report: dict[str, Any]) -> Iterator[str]:
    """The lines that `plan` prints."""
    machine, work = report["machine"], report["workload"]
    yield (
        f"{report['models']['target']} with {report['models']['draft']} on {machine['cpu']}, "
        f"threads: {machine['num_threads']}"
    )
    yield (
        f"{work['prompts']} prompts x {work['max_new_tokens']} tokens, one at a time; each cell: "
        "tokens per target call, and the predicted speed-up"
    )
    for setting in report["settings"]:
        yield ""
        yield from _describe_setting(setting)
    yield ""
    yield from _describe_pick(report)


def _describe_setting(setting: dict[str, Any]) -> Iterator[str]:
    alone = setting["target_only"]
    yield (
        f"temperature {setting['temperature']:g}: target-only {alone['tokens_per_second']:.1f} "
        f"tokens/s, {alone['target_ms']:.2f} ms a call"
    )
    grid = _worth_showing(setting)
    sizes = sorted({one["num_speculative_tokens"] for one in grid})
    rows = [["rule", "drafts", *(f"k = {k}" for k in sizes)]]
    for rule, count in dict.fromkeys((one["rule"], one["num_drafts"]) for one in grid):
        cells = {
            one["num_speculative_tokens"]: one
            for one in grid
            if (one["rule"], one["num_drafts"]) == (rule, count)
        }
        exact = all(one["exact"] for one in cells.values())
        name = rule if exact else f"{rule} (approximate)"
        rows.append([name, str(count), *(_cell(cells.get(k)) for k in sizes)])
    yield from table(rows)
    errors = [one["standard_error"] for one in grid]
    yield f"standard error of tokens per call: {min(errors):.2f} to {max(errors):.2f}"
    if any(one["cost"] == "estimated" for one in grid):
        yield "~ cost of several drafts estimated from single calls; a bundle has it measured"
    if setting["temperature"] > 0 and setting["transport_ceiling"]:
        ceiling = setting["transport_ceiling"].items()
        shown = ", ".join(f"{count}: {value:.3f}" for count, value in ceiling)
        yield f"accepted at one position by optimal transport, by number of drafts: {shown}"


def _worth_showing(setting: dict[str, Any]) -> list[dict[str, Any]]:
    """The grid without what is the rule `greedy` under another name."""
    grid: list[dict[str, Any]] = setting["grid"]
    if not any(one["rule"] == "greedy" for one in grid):
        return grid
    temperature = setting["temperature"]
    return [one for one in grid if differs(Choice(one["rule"], one["num_drafts"]), temperature)]


def _cell(one: dict[str, Any] | None) -> str:
    if one is None:
        return ""
    mark = _SOURCES[one["cost"]]
    return f"{one['block_efficiency']:.2f} {mark}{one['speed_up']:.2f}x"


def _describe_pick(report: dict[str, Any]) -> Iterator[str]:
    pick = report["pick"]
    if pick is None:
        yield "no rule serves all of these temperatures: plan for them one by one"
        return
    drafts = f", {pick['num_drafts']} drafts" if pick["num_drafts"] > 1 else ""
    if pick["speed_up"] <= 1:
        yield "speculation does not pay here: decode with the target alone (speculative=False)"
    yield (
        f"best: {pick['rule']}, k = {pick['num_speculative_tokens']}{drafts}, "
        f"{pick['speed_up']:.2f}x over all temperatures"
    )
    yield report["command"]
