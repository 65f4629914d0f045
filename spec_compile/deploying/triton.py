"""Write a model repository for NVIDIA Triton Inference Server: a bundle and what serves it."""

from __future__ import annotations

import json
import os
import re
import shutil
import string
from dataclasses import asdict, dataclass
from pathlib import Path

from spec_compile.errors import ConfigError
from spec_compile.manifest import MANIFEST_FILE, Manifest
from spec_compile.runtime.loader import open_bundle
from spec_compile.runtime.requests import check_count, check_num_threads
from spec_compile.runtime.scheduler import MAX_QUEUE, PREFILL_CHUNK
from spec_compile.staging import check_output, staged

_MODEL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_TEMPLATES = Path(__file__).parent.parent / "assets" / "triton"
_MODEL = Path(__file__).parent / "triton_model.py"
_EXTRAS = {"onnxruntime": "cpu", "tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt-rtx"}


@dataclass(frozen=True)
class TritonSettings:
    """How the model serves; the names are those of `AsyncDecoder.load`.

    Args:
        num_slots: requests served at a time; None takes the bundle's `batch_size`.
        max_queue: requests that may wait beside them.
        prefill_chunk: most tokens of prompts that a step feeds.
        num_threads: threads of one graph call; None leaves the choice to the engine.
        request_seconds: after which a request ends with what it has; None never.

    Raises:
        ConfigError: a number out of its range.
    """

    num_slots: int | None = None
    max_queue: int = MAX_QUEUE
    prefill_chunk: int = PREFILL_CHUNK
    num_threads: int | None = None
    request_seconds: float | None = 600.0

    def __post_init__(self) -> None:
        if self.num_slots is not None:
            check_count("num_slots", self.num_slots)
        check_count("max_queue", self.max_queue)
        check_count("prefill_chunk", self.prefill_chunk)
        if self.num_threads is not None:
            check_num_threads(self.num_threads)
        if self.request_seconds is not None and not 0 < self.request_seconds < float("inf"):
            raise ConfigError(f"request_seconds={self.request_seconds} must be a positive number")


def write_repository(
    bundle: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    model_name: str | None = None,
    settings: TritonSettings | None = None,
    verify_hash: bool = True,
) -> Path:
    """Write a model repository with one model; it appears whole or not at all.

    Args:
        bundle: the bundle's folder; it is copied.
        output: the repository's folder, which must not exist.
        model_name: what clients call it; None takes the name of the bundle's folder.
        settings: how it serves; None takes the defaults.
        verify_hash: compare every file of the bundle with its SHA-256.

    Returns:
        The repository's folder.

    Raises:
        ArtifactError: a damaged bundle, or an output that cannot be written.
        ConfigError: a name that Triton does not take, or a bundle that cannot be served so.
    """
    folder = Path(output)
    name = _check_name(model_name or Path(bundle).resolve().name)
    check_output(folder)
    opened = open_bundle(bundle, verify_hash=verify_hash)
    _check_served(opened.manifest)
    values = _values(name, opened.manifest, settings or TritonSettings())
    with staged(folder) as staging:
        version = staging / name / "1"
        version.mkdir(parents=True)
        shutil.copyfile(_MODEL, version / "model.py")
        for file in (MANIFEST_FILE, *opened.manifest.files):
            (version / "bundle" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(opened.folder / file, version / "bundle" / file)
        _fill("config.pbtxt", values, staging / name)
        _fill("README.md", values, staging)
    return folder


def _check_name(name: str) -> str:
    if not _MODEL_NAME.fullmatch(name):
        raise ConfigError(
            f"model name {name!r} must be letters, digits, '.', '_' and '-'; give --model-name"
        )
    return name


def _check_served(manifest: Manifest) -> None:
    if manifest.reads_source:
        raise ConfigError(
            "package does not take encoder-decoder bundles, which continuous batching does not "
            "serve; use spec_compile.load"
        )
    backend = manifest.config.backend
    if backend not in _EXTRAS:
        raise ConfigError(
            f"package does not take bundles of backend {backend}; export with one of "
            f"{', '.join(_EXTRAS)}"
        )


def _values(name: str, manifest: Manifest, settings: TritonSettings) -> dict[str, str]:
    num_slots = settings.num_slots or manifest.config.batch_size
    numbers = asdict(settings) | {"num_slots": num_slots}
    return {
        "model_name": name,
        "extra": _EXTRAS[manifest.config.backend],
        **{key: json.dumps(value) for key, value in numbers.items()},
    }


def _fill(name: str, values: dict[str, str], folder: Path) -> None:
    template = string.Template((_TEMPLATES / name).read_text(encoding="utf-8"))
    (folder / name).write_text(template.substitute(values), encoding="utf-8")
