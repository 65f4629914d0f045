"""The sampling options that several commands share."""

from __future__ import annotations

import argparse
from typing import TypedDict, cast

from spec_compile.commands.lists import floats


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of everything that samples."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


def add_sampling_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Declare --temperature, --top-k, --top-p and --min-p; each is None when not given.

    Args:
        parser: of the command.
        several: take a list of temperatures, separated by commas, each for a run of its own.
    """
    if several:
        text = "0 is greedy; each is measured (default 0)"
        parser.add_argument("--temperature", type=floats, metavar="F,F", help=text)
    else:
        parser.add_argument("--temperature", type=float, metavar="F", help="0 is greedy")
    parser.add_argument("--top-k", type=int, metavar="N", help="0 is off")
    parser.add_argument("--top-p", type=float, metavar="F", help="1 is off")
    parser.add_argument("--min-p", type=float, metavar="F", help="0 is off")


def given_sampling(args: argparse.Namespace) -> SamplingOptions:
    """The sampling options that the user gave."""
    values = {name: getattr(args, name) for name in SamplingOptions.__annotations__}
    given = {name: value for name, value in values.items() if value is not None}
    return cast(SamplingOptions, given)
