"""The peers by name: where each one runs, and what its worker is. Standard library alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OURS = "spec-compile"
MARK = "made-by-setup.txt"
"""A file that an environment has when it is complete."""


@dataclass(frozen=True)
class PeerEntry:
    """A system of the comparison.

    Args:
        title: its name in the tables.
        module: its worker, run with `python -m`.
        environment: folder below `--envs`; None runs in the interpreter of `run.py` itself.
        packages: what `setup.py` installs there, pinned.
        removed: packages taken out again, because they come along and break the rest.
    """

    title: str
    module: str
    environment: str | None = None
    packages: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


_OPENVINO = (
    "openvino-genai==2026.4.1.0",
    "openvino-tokenizers==2026.4.1.0",
    "openvino==2026.4.1",
    "optimum-intel==2.2.0",
    "nncf==3.4.0",
    "torch==2.13.0",
    "transformers==5.5.4",
)

PEERS: Mapping[str, PeerEntry] = {
    OURS: PeerEntry("spec-compile", "benchmarks.peers.ours"),
    "transformers": PeerEntry("transformers", "benchmarks.peers.hf_transformers"),
    "ort-genai": PeerEntry(
        "ONNX Runtime GenAI",
        "benchmarks.peers.ort_genai",
        "ort-genai",
        (
            "onnxruntime-genai==0.18.0",
            "onnxruntime==1.32.0",
            "torch==2.13.0",
            "transformers==5.24.0",
            "onnx==1.23.2",
            "onnx-ir==1.1.0",
            "tqdm==4.70.1",
        ),
    ),
    "ov-genai": PeerEntry(
        "OpenVINO GenAI",
        "benchmarks.peers.ov_genai",
        "ov-genai",
        _OPENVINO,
        removed=("torchvision",),
    ),
    "ov-genai-sdpa": PeerEntry(
        "OpenVINO GenAI (SDPA)",
        "benchmarks.peers.ov_genai_sdpa",
        "ov-genai",
        _OPENVINO,
        removed=("torchvision",),
    ),
    "llama-cpp": PeerEntry(
        "llama.cpp",
        "benchmarks.peers.llama_cpp",
        "llama-cpp",
        (
            "torch==2.13.0",
            "transformers==5.24.0",
            "numpy==2.4.6",
            "safetensors==0.8.0",
            "sentencepiece==0.2.3",
            "protobuf==7.36.2",
            "pyyaml==6.0.4",
            "requests==2.34.2",
            "tqdm==4.70.1",
        ),
    ),
}


def interpreter(name: str, environments: Path) -> Path:
    """The Python that runs a peer's worker."""
    environment = PEERS[name].environment
    if environment is None:
        return Path(sys.executable)
    return environments / environment / "bin" / "python"


def missing(name: str, environments: Path) -> str | None:
    """Why a peer cannot be started, in one line; None when it can."""
    environment = PEERS[name].environment
    if environment is None or (environments / environment / MARK).is_file():
        return None
    return (
        f"no environment {environments / environment}; "
        f"run: python benchmarks/peers/setup.py --envs {environments} {name}"
    )
