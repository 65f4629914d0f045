"""Write a folder as a whole: it goes to a temporary sibling, which is renamed at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from spec_compile.errors import ArtifactError

_CHUNK = 1 << 20


def check_output(output: Path) -> None:
    """Refuse an output folder that cannot be made, before hours of work go into it.

    Raises:
        ArtifactError: it exists, or its parent is missing or cannot be written.
    """
    parent = output.parent
    try:
        if output.exists() or output.is_symlink():
            raise ArtifactError(f"{output} exists; remove it or choose another output folder")
        parent = next(folder for folder in output.parents if folder.exists())
        with tempfile.TemporaryDirectory(dir=parent, prefix=f".{output.name}."):
            pass
    except OSError as error:
        raise ArtifactError(f"cannot write to {parent}: {error.strerror}") from error
    except ValueError as error:  # a NUL, say
        raise ArtifactError(f"{str(output)!r} cannot name a folder: {error}") from error


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """A folder to write into; it becomes `output` on success and vanishes on any failure.

    Raises:
        ArtifactError: the disk is full, or the folder cannot be written or renamed.
    """
    check_output(output)
    with ExitStack() as undo:
        try:
            for parent in reversed(output.parents):
                if not parent.exists():
                    parent.mkdir()
                    # Only while it is empty: not after success, nor when others use it too.
                    undo.callback(_remove_empty, parent)
            folder = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}."))
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            with _explained(folder):
                yield folder
            folder.chmod(0o755)
            folder.rename(output)
        except OSError as error:
            raise ArtifactError(f"cannot write {output}: {error.strerror or error}") from error


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Raise the reason that a write meets now for an error without one: NumPy counts bytes only."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            (folder / "probe").write_bytes(bytes(_CHUNK))
        raise


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
