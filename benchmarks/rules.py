"""Every acceptance rule on one pair: tokens a round, speed, what its tail costs the verify call.

    python benchmarks/rules.py export --target T --draft D -o FOLDER [--rules block kseq:8 ...]
    python benchmarks/rules.py speed FOLDER [--temperature 0.3 0.7 1]
    python benchmarks/rules.py tail FOLDER

A rule for several drafts is written `name:K`, and `name:K:k` asks for k draft tokens instead of 4.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.figures.rule_tables import Load, rule_speed, rule_tails
from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair

SINGLE = ("rejection", "block", "match", "typical", "lenient", "specdec")
SEVERAL = ("kseq", "recursive", "recursive_wor", "fanout")
RULES = (*SINGLE, *(f"{rule}:{drafts}" for rule in SEVERAL for drafts in (2, 4, 8)))
Arguments = argparse.Namespace


def main() -> None:
    """Export the bundles, or measure them."""
    arguments = build_parser().parse_args()
    arguments.run(arguments)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all sub-commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    export = commands.add_parser("export", help="one bundle a rule, those that exist left alone")
    export.add_argument("--target", required=True)
    export.add_argument("--draft", required=True)
    export.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    export.add_argument("--max-length", type=int)
    export.add_argument("--rules", nargs="+", default=RULES, metavar="RULE[:K[:k]]")
    export.set_defaults(run=_export)
    speed = commands.add_parser("speed", help="tokens a round and a second against the target")
    speed.add_argument("--temperature", type=float, nargs="+", default=[0.3, 0.7, 1.0])
    speed.add_argument("--max-new-tokens", type=int, default=128, help="default %(default)s")
    speed.add_argument("--num-prompts", type=int, default=20, help="default %(default)s")
    speed.set_defaults(run=_speed)
    tail = commands.add_parser("tail", help="the verify call against itself without acceptance")
    tail.add_argument("--repeat", type=int, default=100, help="default %(default)s")
    tail.add_argument("--valid", type=int, default=128, help="cache entries in use")
    tail.set_defaults(run=_tail)
    for command in (speed, tail):
        command.add_argument("folder", type=Path)
        command.add_argument("--json", action="store_true", help="print JSON instead of a table")
        command.add_argument("--num-threads", type=int, help="threads of one graph call")
    return parser


def config_of(rule: str, max_length: int | None) -> SpecConfig:
    """What `name`, `name:K` or `name:K:k` stands for."""
    name, *numbers = rule.split(":")
    num_drafts = int(numbers[0]) if numbers else 1
    num_tokens = int(numbers[1]) if len(numbers) > 1 else 4
    return SpecConfig(num_tokens, name, max_length=max_length, num_drafts=num_drafts)


def _export(arguments: Arguments) -> None:
    arguments.output.mkdir(parents=True, exist_ok=True)
    for rule in arguments.rules:
        folder = arguments.output / rule.replace(":", "-")
        if not folder.exists():
            config = config_of(rule, arguments.max_length)
            compile_pair(arguments.target, arguments.draft, folder, config)
            print(f"wrote {folder}", file=sys.stderr)


def _speed(arguments: Arguments) -> None:
    bundles = _bundles(arguments.folder)
    wanted = Load(
        arguments.num_prompts,
        arguments.max_new_tokens,
        arguments.temperature,
        arguments.num_threads,
    )
    figure = rule_speed(bundles, wanted)
    print(figure.to_json() if arguments.json else figure.to_markdown())


def _tail(arguments: Arguments) -> None:
    bundles = _bundles(arguments.folder)
    figure = rule_tails(bundles, arguments.valid, arguments.repeat, arguments.num_threads)
    print(figure.to_json() if arguments.json else figure.to_markdown())


def _bundles(folder: Path) -> list[Path]:
    found = sorted(path.parent for path in folder.glob("*/manifest.json"))
    if not found:
        raise SystemExit(f"{folder} holds no bundles; run the sub-command export first")
    return found


if __name__ == "__main__":
    main()
