"""`spec-compile check`: prove a bundle, and print a short table of what held."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

from spec_compile.check import CheckOptions, CheckReport, check_bundle
from spec_compile.checking.law import SETTINGS, Setting
from spec_compile.commands.progress import ProgressBar
from spec_compile.commands.sampling_arguments import add_sampling_arguments, given_sampling
from spec_compile.prompts import read_prompt_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `check`."""
    default = CheckOptions()
    parser.add_argument("bundle", metavar="BUNDLE", help="folder that export wrote")
    parser.add_argument(
        "--target", metavar="T", help="compare logits with this model: preset, folder or hub id"
    )
    parser.add_argument("--greedy", action="store_true", help="of the rest, check greedy tokens")
    parser.add_argument("--law", action="store_true", help="of the rest, check the output law")
    parser.add_argument("--prompt-file", metavar="F", help="prompts, one a line, or a .json list")
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=default.max_new_tokens,
        metavar="N",
        help="greedy tokens for each prompt (default %(default)s)",
    )
    parser.add_argument(
        "--law-samples",
        type=int,
        default=default.law_samples,
        metavar="N",
        help="rounds for each law (default %(default)s)",
    )
    add_sampling_arguments(parser)
    parser.add_argument("--seed", type=int, default=default.seed, metavar="N")
    parser.add_argument("--num-threads", type=int, metavar="N", help="threads of the engine")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--no-verify-hash", action="store_true", help="skip the SHA-256 checks")


def run(args: argparse.Namespace) -> int:
    """Check and print; 1 when anything failed."""
    given = given_sampling(args)
    everything = not (args.greedy or args.law)
    options = CheckOptions(
        target=args.target,
        greedy=args.greedy or everything,
        law=args.law or everything,
        prompts=read_prompt_file(args.prompt_file) if args.prompt_file else None,
        max_new_tokens=args.max_new_tokens,
        law_samples=args.law_samples,
        settings=(Setting(**given),) * len(SETTINGS) if given else SETTINGS,
        seed=args.seed,
        num_threads=args.num_threads,
        verify_hash=not args.no_verify_hash,
    )
    with ProgressBar(quiet=bool(args.quiet)) as progress:
        report = check_bundle(args.bundle, options, progress)
    lines = [json.dumps(report.as_dict())] if args.json else describe(report)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if report.passed else 1


def describe(report: CheckReport) -> Iterator[str]:
    """The lines that `check` prints."""
    for result in report.results:
        yield f"{result.name:<8} {result.status:<6} {result.detail}"
    yield f"{report.bundle}: {'all checks passed' if report.passed else 'FAILED'}"
