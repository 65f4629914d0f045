"""Names of the models that come with the package (standard library only)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_ASSETS = Path(__file__).resolve().parent / "assets"

PRESETS: Mapping[str, Path] = MappingProxyType(
    {"llama": _ASSETS / "llama", "small": _ASSETS / "small"}
)
"""Preset name to model folder: `llama` is the demonstration target, `small` its draft."""


def resolve_preset(name: str) -> Path | None:
    """The folder of the preset called `name`, or None when no preset has that name."""
    return PRESETS.get(name)
