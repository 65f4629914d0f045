"""Which engines this machine cannot run, and why: a table without their rows should say so."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from spec_compile.errors import BackendError
from spec_compile.runtime.engines.cuda import CudaDriver
from spec_compile.runtime.engines.onnxruntime_device import PROVIDERS

_PACKAGES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}


def unavailable_engines() -> dict[str, str]:
    """The reason, on one line, by engine: ONNX Runtime's devices, then the backends of bundles."""
    return {
        **{f"onnxruntime --device {name}": reason for name, reason in _devices()},
        **{f"backend {name}": reason for name, reason in _backends()},
    }


def _devices() -> list[tuple[str, str]]:
    try:
        available = import_module("onnxruntime").get_available_providers()
    except ImportError:
        return [(name, "onnxruntime is not installed") for name in PROVIDERS]
    return [
        (name, f"this ONNX Runtime has no {provider.name}")
        for name, provider in PROVIDERS.items()
        if provider.name not in available
    ]


def _backends() -> list[tuple[str, str]]:
    found = []
    for name, package in _PACKAGES.items():
        if find_spec(package) is None:
            found.append((name, f"the package {package} is not installed"))
        elif (reason := _no_device()) is not None:
            found.append((name, reason))
    if find_spec("torch") is None:
        found.append(("torch", "the package torch is not installed"))
    return found


def _no_device() -> str | None:
    try:
        CudaDriver()
    except BackendError as error:
        return str(error)
    return None
