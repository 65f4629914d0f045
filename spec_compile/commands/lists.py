"""Values of options that take several, separated by commas."""

from __future__ import annotations

import argparse


def floats(text: str) -> tuple[float, ...]:
    """`0,0.7,1` as numbers; for `type=` of an argument."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers like 0,0.7,1") from error


def integers(text: str) -> tuple[int, ...]:
    """`1,2,4` as whole numbers; for `type=` of an argument."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers like 1,2,4") from error


def names(text: str) -> tuple[str, ...]:
    """`block,fanout` as texts; for `type=` of an argument."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
