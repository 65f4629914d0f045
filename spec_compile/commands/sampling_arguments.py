"""The options of sampling and of prompt lookup that several commands share."""

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


class LookupOptions(TypedDict, total=False):
    """Keyword arguments of everything that looks up."""

    prompt_lookup_min: int
    prompt_lookup_max: int


def add_lookup_arguments(
    parser: argparse.ArgumentParser, least: str = "the bundle's", most: str = "the bundle's"
) -> None:
    """Declare --prompt-lookup-min and --prompt-lookup-max; each is None when not given.

    Args:
        parser: of the command.
        least: default of the first, in words.
        most: default of the second.
    """
    for name, extreme, default in (("min", "fewest", least), ("max", "most", most)):
        parser.add_argument(
            f"--prompt-lookup-{name}",
            type=int,
            metavar="N",
            help=f"{extreme} last tokens that prompt lookup looks for (default {default})",
        )


def given_lookup(args: argparse.Namespace) -> LookupOptions:
    """The options of prompt lookup that the user gave."""
    values = {name: getattr(args, name) for name in LookupOptions.__annotations__}
    given = {name: value for name, value in values.items() if value is not None}
    return cast(LookupOptions, given)


def add_adaptive_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --adaptive."""
    parser.add_argument(
        "--adaptive",
        action="store_true",
        help="choose the number of draft tokens of each round by what rounds take and accept",
    )
