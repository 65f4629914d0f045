"""Opening a bundle: nothing in it is believed before it is checked."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from spec_compile.errors import ArtifactError
from spec_compile.manifest import MANIFEST_FILE, FileSpec, Manifest

_LOG = logging.getLogger(__name__)
_MAX_MANIFEST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Bundle:
    """A bundle whose manifest and files have been checked.

    Args:
        folder: where it is; files are looked up relative to it, so that a bundle may be moved.
        manifest: its parsed manifest.
    """

    folder: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        """Where the listed file `name` is.

        Raises:
            ArtifactError: the manifest does not list it.
        """
        if name not in self.manifest.files:
            raise ArtifactError(f"{self.folder}: {name!r} is not a file of this bundle")
        return self.folder / name


def open_bundle(folder: str | os.PathLike[str], *, verify_hash: bool = True) -> Bundle:
    """Read and check a bundle.

    Args:
        folder: the bundle.
        verify_hash: compare every file with its SHA-256; sizes are always compared.

    Raises:
        ArtifactError: one line that names the first thing found wrong.
    """
    root = Path(folder)
    manifest = Manifest.from_json(_read_manifest(root))
    started = time.perf_counter()
    for name, expected in manifest.files.items():
        _check_file(root, name, expected, verify_hash)
    _LOG.debug("checked %d files in %.2f s", len(manifest.files), time.perf_counter() - started)
    return Bundle(root, manifest)


def _read_manifest(root: Path) -> str:
    path = root / MANIFEST_FILE
    try:
        if not root.exists():
            raise ArtifactError(f"{root}: no such bundle")
        if not path.is_file():
            raise ArtifactError(f"{root}: not a bundle, it has no {MANIFEST_FILE}")
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise ArtifactError(f"{path}: too large for a manifest; export the bundle again")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{path}: is not UTF-8 text; export the bundle again") from error
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error


def _check_file(root: Path, name: str, expected: FileSpec, verify_hash: bool) -> None:
    path = root / name
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            raise ArtifactError(f"{path}: is a link that leaves the bundle; refused")
        if not path.is_file():
            raise ArtifactError(f"{path}: missing; copy or export the bundle again")
        size = path.stat().st_size
        if size != expected.size:
            raise ArtifactError(
                f"{path}: has {size} bytes, the manifest says {expected.size}; "
                "copy or export the bundle again"
            )
        if verify_hash and _sha256(path) != expected.sha256:
            raise ArtifactError(
                f"{path}: its SHA-256 is not the manifest's; copy or export the bundle again"
            )
    except (OSError, RuntimeError) as error:
        raise ArtifactError(f"{path}: cannot be read: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
