"""`spec-compile passes`: passes and lowerings in order, and what one pass does to a pair."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spec_compile.commands.compile_steps import CompileSteps
from spec_compile.config import FUSIONS, SpecConfig, config_for
from spec_compile.errors import ConfigError

if TYPE_CHECKING:
    from spec_compile.export.cpu.lowering import Lowering
    from spec_compile.passes.base import Pass

_SHOWN_MISMATCHES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `passes`."""
    parser.add_argument(
        "--explain", metavar="PASS", help="run the pipeline and tell what this pass did"
    )
    parser.add_argument(
        "--fusion",
        default=SpecConfig().fusion,
        metavar="F",
        help=f"one of {', '.join(FUSIONS)} (default %(default)s)",
    )
    parser.add_argument("--target", metavar="T", help="model to explain with (default llama)")
    parser.add_argument("--draft", metavar="D", help="its draft, or prompt-lookup (default small)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """List the passes, or explain one."""
    config = replace(config_for(args.draft or "small"), fusion=args.fusion)
    if args.explain is None and (args.target, args.draft) != (None, None):
        raise ConfigError("--target and --draft go with --explain PASS")
    from spec_compile.export.cpu.pipeline import build_lowerings
    from spec_compile.passes.pipeline import build_pipeline

    # The list does not depend on these sizes.
    passes = build_pipeline(config, vocab_size=1, max_length=config.num_speculative_tokens + 1)
    if args.explain is None:
        raw: dict[str, Any] = {
            "passes": [_describe(each) for each in passes],
            "lowerings": [_describe(each) for each in build_lowerings()],
        }
        lines = _list([*raw["passes"], *raw["lowerings"]])
    else:
        raw = explain(_find(args.explain, passes, config), config, args)
        lines = _explanation(raw)
    text = json.dumps(raw, ensure_ascii=False) if args.json else "\n".join(lines)
    sys.stdout.write(text + "\n")
    return 0


def explain(chosen: Pass, config: SpecConfig, args: argparse.Namespace) -> dict[str, Any]:
    """Run the pipeline on a pair and tell what the pass `chosen` did.

    Returns:
        `name`, `summary`, `rewrites`, `ms`, and `mismatches` with `node` and `reason`.

    Raises:
        SpecCompileError: the pair cannot be captured, or a pass failed.
    """
    from spec_compile.driver import capture_pair, open_pair, run_pipeline, steps
    from spec_compile.passes.instruments import Explain, Timing

    timing, misses = Timing(), Explain()
    with CompileSteps(steps(config)[:-2], args) as progress:
        progress("read checkpoints")
        pair = open_pair(args.target or "llama", args.draft or "small")
        captured = capture_pair(pair, config, progress)
        run_pipeline(captured, config, [timing, misses], progress)
    rewrites, seconds = next((r, s) for name, r, s in timing.rows if name == chosen.name)
    return {
        **_describe(chosen),
        "rewrites": rewrites,
        "ms": round(seconds * 1e3, 1),
        "mismatches": [
            {"node": miss.node, "reason": miss.reason} for miss in misses.mismatches[chosen.name]
        ],
    }


def _find(name: str, passes: Sequence[Pass], config: SpecConfig) -> Pass:
    for each in passes:
        if each.name == name:
            return each
    raise ConfigError(
        f"the pipeline of fusion {config.fusion} has no pass {name!r}; choose one of "
        f"{', '.join(each.name for each in passes)}"
    )


def _describe(each: Pass | Lowering) -> dict[str, str]:
    return {"name": each.name, "summary": (type(each).__doc__ or "").strip().split("\n")[0]}


def _list(passes: Sequence[dict[str, str]]) -> Iterator[str]:
    width = max(len(each["name"]) for each in passes)
    for each in passes:
        yield f"{each['name']:<{width}}  {each['summary']}"


def _explanation(raw: dict[str, Any]) -> Iterator[str]:
    yield f"{raw['name']}: {raw['summary']}"
    yield f"{raw['rewrites']} rewrites in {raw['ms']:.1f} ms"
    misses = raw["mismatches"]
    yield "nearest mismatches:" if misses else "no near misses"
    for miss in misses[:_SHOWN_MISMATCHES]:
        yield f"  {miss['node']}: {miss['reason']}"
    if len(misses) > _SHOWN_MISMATCHES:
        yield f"  and {len(misses) - _SHOWN_MISMATCHES} more (--json shows all)"
