"""The measured figures of `docs/benchmarks.md`: one sub-command a table.

    python benchmarks/foundation.py COMMAND [BUNDLE...] [--json]

Prints a Markdown table to paste, or with --json every number behind it. Measure on a machine that
does nothing else: the load average at the start is printed with each table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.figures.report import Figure

Arguments = argparse.Namespace


def main() -> None:
    """Measure one figure and print it."""
    arguments = build_parser().parse_args()
    figure = COMMANDS[arguments.command](arguments)
    print(figure.to_json() if arguments.json else figure.to_markdown())


def build_parser() -> argparse.ArgumentParser:
    """The parser of all sub-commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON instead of a table")
    common.add_argument("--num-threads", type=int, help="threads of one graph call")
    bundles = argparse.ArgumentParser(add_help=False)
    bundles.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")

    def add(name: str, repeat: int | None, text: str, *, takes_bundles: bool = True) -> Adder:
        parents = [common, bundles] if takes_bundles else [common]
        sub = commands.add_parser(name, parents=parents, help=text, description=text)
        if repeat is not None:
            sub.add_argument("--repeat", type=int, default=repeat, help="default %(default)s")
        return sub.add_argument

    option = add("verify-cost", 300, "verify call, its tail cut off, and each sampling option")
    option("--valid", type=int, default=128, help="cache entries in use (default %(default)s)")
    option = add("capacity", 300, "verify call by cache capacity; cache copies")
    option("--valid", type=int, default=128, help="cache entries in use (default %(default)s)")
    add("memory", 3, "peak memory and seconds to load, in fresh processes")
    add("package", 7, "import time and wheel size", takes_bundles=False)
    option = add("identity", None, "greedy tokens against target-only decoding")
    option("--max-new-tokens", type=int, default=128, help="default %(default)s")
    option = add("speed", 5, "tokens per second, side by side")
    option("--max-new-tokens", type=int, default=128, help="default %(default)s")
    option("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    option = add("export", 1, "seconds of an export", takes_bundles=False)
    option("--target", default="llama")
    option("--draft", default="small")
    option("--max-length", type=int, default=None)
    return parser


Adder = Callable[..., argparse.Action]


def _verify_cost(arguments: Arguments) -> Figure:
    from benchmarks.figures.verify_cost import verify_cost

    (bundle,) = arguments.bundles
    return verify_cost(bundle, arguments.valid, arguments.repeat, arguments.num_threads)


def _capacity(arguments: Arguments) -> Figure:
    from benchmarks.figures.capacity import capacity

    return capacity(arguments.bundles, arguments.valid, arguments.repeat, arguments.num_threads)


def _memory(arguments: Arguments) -> Figure:
    from benchmarks.figures.memory import memory

    return memory(arguments.bundles, arguments.repeat, arguments.num_threads)


def _package(arguments: Arguments) -> Figure:
    from benchmarks.figures.package import package

    return package(arguments.repeat)


def _identity(arguments: Arguments) -> Figure:
    from benchmarks.figures.identity import identity

    return identity(arguments.bundles, arguments.max_new_tokens, arguments.num_threads)


def _speed(arguments: Arguments) -> Figure:
    from benchmarks.figures.speed import speed

    return speed(
        arguments.bundles,
        arguments.temperature,
        arguments.repeat,
        arguments.max_new_tokens,
        arguments.num_threads,
    )


def _export(arguments: Arguments) -> Figure:
    from benchmarks.figures.export_time import export_time

    length = arguments.max_length
    options = [] if length is None else ["--max-length", str(length)]
    return export_time(arguments.target, arguments.draft, options, arguments.repeat)


COMMANDS: Mapping[str, Callable[[Arguments], Figure]] = {
    "verify-cost": _verify_cost,
    "capacity": _capacity,
    "memory": _memory,
    "package": _package,
    "identity": _identity,
    "speed": _speed,
    "export": _export,
}


if __name__ == "__main__":
    main()
