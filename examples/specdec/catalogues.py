"""Message catalogues (.mo files of GNU gettext), read as pairs of English and German text."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

MAGIC = 0x950412DE
CONTEXT_ENDS, FORMS_PART = "\x04", "\x00"
MNEMONIC_SIGNS = "_&~"
OLD_CONTEXT = re.compile(r"^(_:[^\n]*\n|\?[a-z-]+:)")


class CatalogueError(ValueError):
    """A file that is no UTF-8 message catalogue."""


def read_catalogue(path: Path) -> Iterator[tuple[str, str]]:
    """Cleaned pairs (English, German) in the order of the file.

    A message with plural forms gives its singular and its last plural; what a context says for
    translators alone is left out.

    Raises:
        CatalogueError: the file is none that can be read.
    """
    for key, value in _messages(path.read_bytes(), path):
        english = key.rpartition(CONTEXT_ENDS)[2].split(FORMS_PART)
        german = value.split(FORMS_PART)
        yield cleaned(english[0], german[0])
        if len(english) > 1 and len(german) > 1:
            yield cleaned(english[-1], german[-1])


def cleaned(english: str, german: str) -> tuple[str, str]:
    """Both without line breaks, and without the sign of a keyboard mnemonic if both have one."""
    english, german = OLD_CONTEXT.sub("", english), OLD_CONTEXT.sub("", german)
    for sign in MNEMONIC_SIGNS:
        if english.count(sign) == 1 == german.count(sign):
            marked = re.compile(f"{re.escape(sign)}(?=\\w)")
            if marked.search(english) and marked.search(german):
                english, german = marked.sub("", english), marked.sub("", german)
    return " ".join(english.split()), " ".join(german.split())


def _messages(data: bytes, path: Path) -> Iterator[tuple[str, str]]:
    try:
        order = "<" if data[:4] == struct.pack("<I", MAGIC) else ">"
        magic, _, count, keys, values, _, _ = struct.unpack_from(f"{order}7I", data)
        if magic != MAGIC:
            raise CatalogueError(f"{path} is no message catalogue")
        for index in range(count):
            key = _text(data, order, keys + 8 * index)
            if key:
                yield key, _text(data, order, values + 8 * index)
    except (struct.error, UnicodeDecodeError) as error:
        raise CatalogueError(f"{path} cannot be read: {error}") from error


def _text(data: bytes, order: str, place: int) -> str:
    length, start = struct.unpack_from(f"{order}2I", data, place)
    return data[start : start + length].decode()
