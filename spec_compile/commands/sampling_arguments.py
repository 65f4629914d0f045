"""The sampling options that several commands share."""

from __future__ import annotations

import argparse

NAMES = ("temperature", "top_k", "top_p", "min_p")


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --temperature, --top-k, --top-p and --min-p; each is None when not given."""
    parser.add_argument("--temperature", type=float, metavar="F", help="0 is greedy")
    parser.add_argument("--top-k", type=int, metavar="N", help="0 is off")
    parser.add_argument("--top-p", type=float, metavar="F", help="1 is off")
    parser.add_argument("--min-p", type=float, metavar="F", help="0 is off")


def given_sampling(args: argparse.Namespace) -> dict[str, float]:
    """The sampling options that the user gave."""
    return {name: getattr(args, name) for name in NAMES if getattr(args, name) is not None}
