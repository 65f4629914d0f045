"""Many concurrent streams on one server for minutes: each answer equals its single run.

    python benchmarks/soak.py BUNDLE [--streams 200] [--minutes 10] [--slots 16] [--json F]

Starts `spec-compile serve` as a process on loopback. Random prompts, lengths, seeds and options;
a share of the clients leaves in the middle. Every finished answer is compared with the run of its
own in a decoder of this process, every cancelled one with its beginning. Exit code 1 if any is
lost or mixed up, or if the server's log has a complaint. Bounded in time and in requests.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.figures.report import Figure
from benchmarks.service.soak import Plan, soak


def main() -> int:
    """Run and print."""
    usual = Plan()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--streams", type=int, default=usual.streams, help="at a time")
    parser.add_argument("--minutes", type=float, default=usual.seconds / 60)
    parser.add_argument("--most-requests", type=int, default=usual.most_requests)
    parser.add_argument("--distinct", type=int, default=usual.distinct, help="different requests")
    parser.add_argument("--max-tokens", type=int, default=usual.max_tokens, help="of an answer")
    parser.add_argument("--leaving", type=float, default=usual.leaving, help="share cancelled")
    parser.add_argument("--slots", type=int, default=usual.slots, help="of the server")
    parser.add_argument("--num-threads", type=int, help="of one graph call")
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--json", type=Path, metavar="F", help="write every number there")
    arguments = vars(parser.parse_args())
    bundle, report_file = arguments.pop("bundle"), arguments.pop("json")
    seconds = 60 * arguments.pop("minutes")
    report = soak(bundle, Plan(seconds=seconds, **arguments))
    figure = Figure(
        "A server under many streams, with cancellations",
        ("figure", "value"),
        report.rows(),
        report.data(),
        report.plan.num_threads,
    )
    print(figure.to_markdown())
    if report_file:
        report_file.write_text(figure.to_json(), encoding="utf-8")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
