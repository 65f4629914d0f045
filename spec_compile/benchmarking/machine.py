"""The machine and the versions behind a figure."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("spec-compile", "onnxruntime", "onnxruntime-gpu", "numpy", "tokenizers")


def describe_machine(num_threads: int | None) -> dict[str, Any]:
    """CPU, memory, system, and what the engine was told.

    Args:
        num_threads: threads of one graph call; None means the engine's own choice.
    """
    return {
        "cpu": cpu_model(),
        "logical_cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "num_threads": num_threads if num_threads is not None else "engine default",
        "memory_bytes": _memory_bytes(),
        "system": platform.platform(),
        "load_average": _load_average(),
    }


def versions() -> dict[str, str]:
    """Python and the installed packages that a generation runs on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """The processor's own name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Logical cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _load_average() -> float | None:
    """Mean number of running processes over the last minute: 0 on an idle machine."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
