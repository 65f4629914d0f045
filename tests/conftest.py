"""Bundles of the demonstration pair, exported once for the whole session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before anything imports triton: its interpreter runs the kernels on CPU tensors.
os.environ.setdefault("TRITON_INTERPRET", "1")

MAX_LENGTH = 256


@pytest.fixture(scope="session")
def demo_verify_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The presets `llama` and `small`, fusion `verify`, default rule, k = 4; do not change it."""
    return _export("verify", tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="session")
def demo_step_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same pair in fusion `step`; do not change it."""
    return _export("step", tmp_path_factory.mktemp("demo"))


def _export(fusion: str, folder: Path) -> Path:
    from spec_compile.config import SpecConfig
    from spec_compile.driver import compile

    config = SpecConfig(fusion=fusion, max_length=MAX_LENGTH)
    return compile("llama", "small", folder / fusion, config)
