"""The text of the demonstration pair: the Python standard library of the running interpreter."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

# Test suites are no prose of the library, the others are tables or no part of it.
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}
)
SKIPPED_PREFIXES = ("_sysconfigdata", "config-", "__phello__")
HELD_OUT_SHARE = 16  # of 256


@dataclass(frozen=True)
class Corpus:
    """Source files as text, in sorted order, split by file.

    Attributes:
        train: text of each file to learn from.
        held_out: text of each file that is only measured on.
        digest: sha256 over names and contents: two runs with one digest saw the same text.
    """

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    digest: str


def read_corpus(root: Path | None = None) -> Corpus:
    """Read every library file below `root` (default: the running interpreter's library)."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    train: list[str] = []
    held_out: list[str] = []
    digest = hashlib.sha256()
    for name in _library_files(root):
        text = _read(root / name)
        digest.update(f"{name}\0{text}\0".encode())
        (held_out if is_held_out(name) else train).append(text)
    return Corpus(tuple(train), tuple(held_out), digest.hexdigest())


def is_held_out(name: str) -> bool:
    """Whether a file, named relative to the library, is kept out of training in every version."""
    return hashlib.sha256(name.encode()).digest()[0] < HELD_OUT_SHARE


def _library_files(root: Path) -> list[str]:
    names = [path.relative_to(root) for path in root.rglob("*.py")]
    return sorted(name.as_posix() for name in names if not _skipped(name.parts))


def _skipped(parts: tuple[str, ...]) -> bool:
    return any(part in SKIPPED_FOLDERS or part.startswith(SKIPPED_PREFIXES) for part in parts)


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace").replace("\r\n", "\n")
