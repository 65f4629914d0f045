"""Strict reading of `manifest.json`: every field once, of the right type, none unknown."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

from spec_compile.errors import ArtifactError

TOP_LEVEL = "the top level"
_LONGEST_MESSAGE = 400
_UNPRINTABLE = ("Cc", "Cs", "Zl", "Zp")  # controls, surrogates, line and paragraph separators


def breach(where: str, problem: str) -> ArtifactError:
    """The error for a field that breaks the format."""
    line = f"manifest.json: {where} {problem}"
    return ArtifactError(line if len(line) <= _LONGEST_MESSAGE else line[:_LONGEST_MESSAGE] + "...")


def is_plain(text: str) -> bool:
    """Whether `text` can be shown on one line of any terminal that knows Unicode."""
    return not any(unicodedata.category(char) in _UNPRINTABLE for char in text)


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of `pairs`, for a JSON parser, which by itself would keep the last of equals.

    Raises:
        ArtifactError: a name comes twice, or cannot be printed on one line.
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found or not is_plain(name):
            raise breach(f"field {name!r}", "comes twice" if name in found else "is no plain text")
        found[name] = value
    return found


def as_text(value: object, where: str) -> str:
    """`value`, if it is a non-empty string of one line.

    Raises:
        ArtifactError: it is not.
    """
    if not isinstance(value, str) or not value:
        raise breach(where, "must be a non-empty text")
    # Such texts are shown: no line break, no terminal control, nothing that UTF-8 cannot say.
    if not is_plain(value):
        raise breach(where, "has a character that cannot be printed")
    return value


def as_integer(value: object, where: str) -> int:
    """`value`, if it is a whole number (true and false are not).

    Raises:
        ArtifactError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise breach(where, f"must be a whole number, got {value!r}")
    return value


class Fields:
    """One JSON object being read: each field is taken once, `finish` refuses what is left.

    Args:
        raw: what the JSON parser returned.
        where: the object's place in the document, for messages.

    Raises:
        ArtifactError: `raw` is no object; every method raises it for a field that is not as asked.
    """

    def __init__(self, raw: object, where: str) -> None:
        if not isinstance(raw, dict):
            raise breach(where, "must be an object")
        self._left: dict[str, Any] = dict(raw)
        self.where = where

    def path(self, name: str) -> str:
        """The place of field `name`."""
        return name if self.where == TOP_LEVEL else f"{self.where}.{name}"

    def has(self, name: str) -> bool:
        """Whether field `name` is there and not yet taken."""
        return name in self._left

    def take(self, name: str) -> Any:
        """Field `name`, of any type."""
        if name not in self._left:
            raise breach(self.path(name), "is missing")
        return self._left.pop(name)

    def text(self, name: str) -> str:
        """Field `name`, a non-empty string."""
        return as_text(self.take(name), self.path(name))

    def optional_text(self, name: str) -> str | None:
        """Field `name`, a non-empty string or null."""
        value = self.take(name)
        return None if value is None else as_text(value, self.path(name))

    def integer(self, name: str) -> int:
        """Field `name`, a whole number."""
        return as_integer(self.take(name), self.path(name))

    def optional_integer(self, name: str) -> int | None:
        """Field `name`, a whole number or null."""
        value = self.take(name)
        return None if value is None else as_integer(value, self.path(name))

    def optional_number(self, name: str) -> float | None:
        """Field `name`, a finite number or null."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise breach(self.path(name), f"must be a number, got {value!r}")
        if not math.isfinite(value):
            raise breach(self.path(name), "must be finite")
        return value

    def boolean(self, name: str) -> bool:
        """Field `name`, true or false."""
        value = self.take(name)
        if not isinstance(value, bool):
            raise breach(self.path(name), "must be true or false")
        return value

    def elements(self, name: str) -> list[tuple[Any, str]]:
        """The elements of list `name`, each with its place."""
        value, path = self.take(name), self.path(name)
        if not isinstance(value, list):
            raise breach(path, "must be a list")
        return [(element, f"{path}[{index}]") for index, element in enumerate(value)]

    def items(self, name: str) -> list[tuple[str, Any, str]]:
        """The entries of object `name`, each with its place."""
        value, path = self.take(name), self.path(name)
        if not isinstance(value, dict):
            raise breach(path, "must be an object")
        return [(key, entry, f"{path}.{key}") for key, entry in value.items()]

    def finish(self) -> None:
        """Refuse fields that nobody took."""
        if self._left:
            unknown = ", ".join(sorted(self._left))
            raise breach(self.where, f"has fields that this version does not know: {unknown}")
