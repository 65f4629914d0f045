"""Compile speculative decoding: verify forward and acceptance sampling in one portable graph.

`compile` makes a bundle (needs the `compile` extra), `load` opens one (needs an engine, no torch).
Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_compile.config import SpecConfig as SpecConfig
    from spec_compile.driver import compile as compile
    from spec_compile.errors import ArtifactError as ArtifactError
    from spec_compile.errors import BackendError as BackendError
    from spec_compile.errors import CaptureError as CaptureError
    from spec_compile.errors import CheckpointError as CheckpointError
    from spec_compile.errors import ClosedError as ClosedError
    from spec_compile.errors import ConfigError as ConfigError
    from spec_compile.errors import GenerationError as GenerationError
    from spec_compile.errors import NativeCodeError as NativeCodeError
    from spec_compile.errors import PassError as PassError
    from spec_compile.errors import QueueFullError as QueueFullError
    from spec_compile.errors import SpecCompileError as SpecCompileError
    from spec_compile.runtime.api import Decoder as Decoder
    from spec_compile.runtime.api import GenerationResult as GenerationResult
    from spec_compile.runtime.api import Stream as Stream
    from spec_compile.runtime.api import load as load
    from spec_compile.runtime.async_decoder import AsyncDecoder as AsyncDecoder
    from spec_compile.runtime.async_decoder import AsyncStream as AsyncStream
    from spec_compile.runtime.shared_decoder import SharedDecoder as SharedDecoder
    from spec_compile.runtime.stats import GenerationStats as GenerationStats

__version__ = "0.1.0"

_HOMES = {
    "SpecConfig": "spec_compile.config",
    "compile": "spec_compile.driver",
    "ArtifactError": "spec_compile.errors",
    "BackendError": "spec_compile.errors",
    "CaptureError": "spec_compile.errors",
    "CheckpointError": "spec_compile.errors",
    "ConfigError": "spec_compile.errors",
    "GenerationError": "spec_compile.errors",
    "NativeCodeError": "spec_compile.errors",
    "PassError": "spec_compile.errors",
    "SpecCompileError": "spec_compile.errors",
    "Decoder": "spec_compile.runtime.api",
    "GenerationResult": "spec_compile.runtime.api",
    "Stream": "spec_compile.runtime.api",
    "load": "spec_compile.runtime.api",
    "ClosedError": "spec_compile.errors",
    "QueueFullError": "spec_compile.errors",
    "AsyncDecoder": "spec_compile.runtime.async_decoder",
    "AsyncStream": "spec_compile.runtime.async_decoder",
    "SharedDecoder": "spec_compile.runtime.shared_decoder",
    "GenerationStats": "spec_compile.runtime.stats",
}
__all__ = [
    "ArtifactError",
    "AsyncDecoder",
    "AsyncStream",
    "BackendError",
    "CaptureError",
    "CheckpointError",
    "ClosedError",
    "ConfigError",
    "Decoder",
    "GenerationError",
    "GenerationResult",
    "GenerationStats",
    "NativeCodeError",
    "PassError",
    "QueueFullError",
    "SharedDecoder",
    "SpecCompileError",
    "SpecConfig",
    "Stream",
    "__version__",
    "compile",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'spec_compile' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
