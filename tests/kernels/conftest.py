"""These tests need the triton package and its interpreter."""

from __future__ import annotations

import importlib.util
import os

import pytest


def _reason() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "the triton package is not installed"
    if os.environ.get("TRITON_INTERPRET") != "1":
        return "TRITON_INTERPRET is not 1, so the kernels cannot run on CPU tensors"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that are marked `triton` where the kernels cannot run."""
    reason = _reason()
    if reason is None:
        return
    for item in items:
        if item.get_closest_marker("triton") is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
