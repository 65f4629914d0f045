"""`NAME=DIR` arguments: bundles of spec-compile, and the precision that each is compared at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.task import PRECISIONS

_QUANTISED = tuple(name for name in PRECISIONS if name != "float32")


class BundleError(Exception):
    """An argument that names no bundle, or one of another precision than it says; one line."""


@dataclass(frozen=True)
class NamedBundle:
    """A bundle of the comparison.

    Args:
        name: as given; a precision, or a precision, a hyphen and more.
        precision: of its weights.
        folder: where it lies.
    """

    name: str
    precision: str
    folder: Path


def parse_bundle(argument: str) -> NamedBundle:
    """The bundle of `NAME=DIR`.

    Raises:
        BundleError: no such form, no bundle there, or its manifest speaks of another precision.
    """
    name, separator, folder = argument.partition("=")
    precision = name.partition("-")[0]
    if not separator or precision not in PRECISIONS or not folder:
        raise BundleError(
            f"{argument!r} is no NAME=DIR whose NAME is a precision, or a precision, a hyphen and "
            f"more; precisions are {', '.join(PRECISIONS)}"
        )
    _check_precision(Path(folder), precision)
    return NamedBundle(name, precision, Path(folder).resolve())


def _check_precision(folder: Path, precision: str) -> None:
    """Compare with the manifest, so that no figure stands in another precision's row."""
    manifest = folder / "manifest.json"
    try:
        config = json.loads(manifest.read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{folder} is no bundle: its manifest.json cannot be read") from error
    said = {word for word in _words(config) if word in _QUANTISED}
    expected = set() if precision == "float32" else {precision}
    if said != expected:
        raise BundleError(
            f"{folder} is named {precision}, but its manifest says {', '.join(sorted(said))}"
            if said
            else f"{folder} is named {precision}, but its manifest says nothing of it"
        )


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _words(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _words(inner)
    elif isinstance(value, str):
        yield value
