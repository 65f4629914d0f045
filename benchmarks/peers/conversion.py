"""Converted models, made once for each checkpoint and kept. Standard library alone."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.peers.worker import NotAvailable

_CHUNK = 1 << 22


def converted(folder: Path, checkpoint: Path, name: str, convert: Callable[[Path], None]) -> Path:
    """The folder of a converted checkpoint; made when it is not there yet.

    Args:
        folder: where converted models are kept.
        checkpoint: Hugging Face folder.
        name: of the kind of conversion, precision included.
        convert: writes the converted model into the empty folder that it is given.
    """
    output = folder / f"{checkpoint.name}-{fingerprint(checkpoint)}" / name
    if output.is_dir():
        return output
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=output.parent))
    try:
        convert(partial)
        partial.rename(output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return output


def fingerprint(checkpoint: Path) -> str:
    """Twelve hexadecimal digits of the contents of a checkpoint's weights and JSON files.

    Raises:
        NotAvailable: the folder is no checkpoint.
    """
    if not (checkpoint / "config.json").is_file():
        raise NotAvailable(f"{checkpoint} is no Hugging Face folder: it has no config.json")
    digest = hashlib.sha256()
    files = sorted(f for f in checkpoint.iterdir() if f.suffix in (".json", ".safetensors"))
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()[:12]


def run_quietly(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a converter.

    Raises:
        NotAvailable: it failed, with the last line that it wrote.
    """
    done = subprocess.run(
        list(command), capture_output=True, text=True, check=False, env=environment, cwd="/"
    )
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no message"]
        raise NotAvailable(f"conversion failed: {lines[-1].strip()[:200]}")
