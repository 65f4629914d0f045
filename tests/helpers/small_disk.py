"""A file system that is really full after a few bytes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[Path]:
    """Mount a disk of `num_bytes` on `folder`; skips the test where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={num_bytes}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if done.returncode != 0:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
