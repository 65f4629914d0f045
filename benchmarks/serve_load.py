"""A server under load from OpenAI's own client: tokens per second, TTFT, TPOT.

    python benchmarks/serve_load.py BUNDLE [--streams 1 8 32] [--requests 64] [--json F]

Starts `spec-compile serve` as a process on loopback. Every setting sends the same requests, at
most so many at a time; speculation is switched by the request's field `speculative`, so that both
settings run in one server over one bundle. TTFT runs from sending to the first piece of text,
waiting included; TPOT is the time from the first piece to the last per token after the first.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.figures.report import Figure
from benchmarks.service.openai_load import COLUMNS, Work, measure
from benchmarks.service.process import ServerProcess
from spec_compile.prompts import BUILT_IN


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], help="at a time")
    parser.add_argument("--requests", type=int, default=64, help="of a pass")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--slots", type=int, default=32, help="of the server")
    parser.add_argument("--repeat", type=int, default=1, help="measured passes")
    parser.add_argument("--num-threads", type=int, help="of one graph call")
    parser.add_argument("--json", type=Path, metavar="F", help="write every number there")
    arguments = parser.parse_args()
    figure = loaded(arguments)
    print(figure.to_markdown())
    if arguments.json:
        arguments.json.write_text(figure.to_json(), encoding="utf-8")


def loaded(arguments: argparse.Namespace) -> Figure:
    """The table over all settings."""
    work = Work(
        list(islice(cycle(BUILT_IN), arguments.requests)),
        arguments.max_tokens,
        arguments.temperature,
    )
    threads = arguments.num_threads
    options = ["--slots", str(arguments.slots)]
    options += [] if threads is None else ["--num-threads", str(threads)]
    with ServerProcess(arguments.bundle, options) as server:
        passes = measure(server.url, work, arguments.streams, repeat=arguments.repeat)
    return Figure(
        f"`spec-compile serve` over {arguments.bundle.name}: {arguments.requests} requests of "
        f"{work.max_tokens} tokens at temperature {work.temperature:g}, {arguments.slots} slots",
        COLUMNS,
        [one.row() for one in passes],
        {"passes": [asdict(one) for one in passes]},
        threads,
    )


if __name__ == "__main__":
    main()
