"""What `plan` predicts against what `bench` measures, on bundles that the plan has not seen.

    python benchmarks/plan_accuracy.py --target T --draft D -o bundles/accuracy

Exports the bundles that `plan` would (`block` with k = 1 and the largest k, `match` with the
largest) and one for each configuration
to compare, into the folder, unless they are there. The plan knows the first three alone; then every
configuration is measured against target-only decoding, over the same prompts and number of tokens.
A configuration is RULE:k, or RULE:k:K for K drafts. Prints one Markdown table.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figures.report import Cell, Figure
from spec_compile.bench import BenchOptions, bench_bundles
from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair
from spec_compile.plan import PlanOptions, plan_bundles
from spec_compile.prompts import read_prompt_file

DEFAULTS = ("block:2", "block:4", "rejection:4", "match:4", "fanout:3:2", "kseq:3:2")


class Configuration(NamedTuple):
    """What a bundle is exported for."""

    rule: str
    num_speculative_tokens: int
    num_drafts: int

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """From RULE:k or RULE:k:K."""
        rule, *numbers = text.split(":")
        try:
            num_tokens, num_drafts = (*map(int, numbers), 1)[:2]
        except ValueError as error:
            raise SystemExit(f"{text!r} is not RULE:k or RULE:k:K") from error
        return cls(rule, num_tokens, num_drafts)

    @property
    def folder(self) -> str:
        """Name of its bundle."""
        return "-".join(map(str, self))


def bundle_of(one: Configuration, args: argparse.Namespace) -> Path:
    """The bundle of a configuration, exported if it is not there yet."""
    folder = Path(args.output) / one.folder
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        config = SpecConfig(
            num_speculative_tokens=one.num_speculative_tokens,
            acceptance=one.rule,
            num_drafts=one.num_drafts,
            quantize=args.quantize,
            max_length=args.max_length,
        )
        compile_pair(args.target, args.draft, folder, config)
    return folder


def compare(args: argparse.Namespace) -> Figure:
    """Plan, measure, and lay one beside the other."""
    wanted = [Configuration.parse(text) for text in args.configurations]
    largest = max(args.largest, *(one.num_speculative_tokens for one in wanted))
    known = [bundle_of(Configuration("block", k, 1), args) for k in sorted({1, largest})]
    known.append(bundle_of(Configuration("match", largest, 1), args))
    folders = {str(bundle_of(one, args)): one for one in wanted}
    prompts = read_prompt_file(args.prompt_file) if args.prompt_file else None
    plan = plan_bundles(
        known,
        PlanOptions(
            prompts=prompts,
            max_new_tokens=args.max_new_tokens,
            temperatures=args.temperature,
            rules=list(dict.fromkeys(one.rule for one in wanted)),
            num_drafts=tuple(sorted({1, *(one.num_drafts for one in wanted)})),
            num_threads=args.num_threads,
        ),
    )
    measured = bench_bundles(
        list(folders),
        BenchOptions(
            prompts=prompts,
            max_new_tokens=args.max_new_tokens,
            temperatures=args.temperature,
            repeat=args.repeat,
            num_threads=args.num_threads,
            memory=False,
        ),
    )
    rows = [
        _row(plan, one, folders[one["bundle"]])
        for one in measured["results"]
        if one["mode"] == "speculative"
    ]
    columns = ["temperature", "rule", "k", "drafts", "tokens a call: predicted", "measured"]
    columns += ["speed-up: predicted", "measured", "predicted / measured"]
    title = f"plan against bench, {args.target} with {args.draft}"
    data = {"plan": plan, "bench": measured}
    return Figure(title, columns, rows, data, args.num_threads)


def _row(plan: dict[str, Any], measured: dict[str, Any], one: Configuration) -> list[Cell]:
    found = _predicted(plan, measured["temperature"], one)
    speed_up = found["speed_up"]
    return [
        f"{measured['temperature']:g}",
        one.rule,
        one.num_speculative_tokens,
        one.num_drafts,
        f"{found['block_efficiency']:.2f}",
        f"{measured['block_efficiency']:.2f}",
        f"{speed_up:.2f}x",
        f"{measured['speed_up']:.2f}x",
        f"{speed_up / measured['speed_up']:.2f}",
    ]


def _predicted(plan: dict[str, Any], temperature: float, one: Configuration) -> dict[str, Any]:
    """The plan's figures of a configuration."""
    setting = next(s for s in plan["settings"] if s["temperature"] == temperature)
    for found in setting["grid"]:
        if (found["rule"], found["num_speculative_tokens"], found["num_drafts"]) == one:
            return dict(found)
    raise SystemExit(f"the plan says nothing about {one.folder} at temperature {temperature:g}")


def main() -> int:
    """Parse, compare, print."""
    parser = argparse.ArgumentParser(description="plan's predictions against measurements")
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("-o", "--output", required=True, help="folder of the bundles")
    parser.add_argument("--configurations", nargs="+", default=list(DEFAULTS), metavar="RULE:k[:K]")
    parser.add_argument("--largest", type=int, default=6, help="k of the plan's larger bundle")
    parser.add_argument("--temperature", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--quantize")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--prompt-file")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--json", help="write every figure to this file")
    args = parser.parse_args()
    figure = compare(args)
    print(figure.to_markdown())
    if args.json:
        Path(args.json).write_text(json.dumps(json.loads(figure.to_json())), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
