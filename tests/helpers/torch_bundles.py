"""Tiny pairs compiled for the backend torch, and the same pairs for ONNX Runtime beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair
from tests.helpers.tiny_models import save_tiny_model, write_tokenizer

MAX_LENGTH = 24
BATCH_SIZE = 4


def compile_both(config: SpecConfig, parent: Path) -> dict[str, Path]:
    """The bundles of a two-layer target and a one-layer draft, by backend."""
    models = {}
    for name, seed, layers in (("target", 3, 2), ("draft", 8, 1)):
        models[name] = save_tiny_model(parent / name, seed=seed, num_hidden_layers=layers)
        write_tokenizer(models[name])
    return {
        backend: compile_pair(
            str(models["target"]),
            str(models["draft"]),
            parent / backend,
            replace(config, backend=backend, max_length=MAX_LENGTH, batch_size=BATCH_SIZE),
        )
        for backend in ("torch", "onnxruntime")
    }
