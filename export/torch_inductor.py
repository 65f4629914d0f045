"""The torch backend: one AOTInductor package a graph, compiled for this machine's processor."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from spec_compile.engine_spec import SHARED, EngineSpec
from spec_compile.errors import BackendError
from spec_compile.export.backend import BuildContext
from spec_compile.export.torch_lowering import export_in_place
from spec_compile.export.torch_weights import write_weights
from spec_compile.host_cpu import host_features
from spec_compile.program import Program, first_line

_LOG = logging.getLogger(__name__)
WEIGHTS_FILE = "weights.safetensors"
_SETTINGS: Mapping[str, Any] = {
    # Weights stay outside: all graphs of a bundle read one file.
    "aot_inductor.package_constants_in_so": False,
    # The number of threads is the runtime's choice.
    "cpp.dynamic_threads": True,
    # Tracing a branch asserts two rows or more, on which nothing that is computed depends.
    "scalar_asserts": False,
}


class TorchBackend:
    """See `Backend`."""

    name = "torch"
    modules = ("torch",)

    def __init__(self) -> None:
        self.engine: EngineSpec | None = None

    def build(self, program: Program, context: BuildContext, folder: Path) -> Mapping[str, str]:
        """Lower, compile and package every graph; see `Backend.build`."""
        lowered = {name: export_in_place(g, context) for name, g in program.graphs.items()}
        for name, exported in lowered.items():
            _compile(name, exported, folder / f"{name}.pt2")
        write_weights(lowered, context.weight_names, folder / WEIGHTS_FILE)
        self.engine = EngineSpec(
            package="torch",
            version=torch.__version__,
            compute_capabilities=(),
            weights=SHARED,
            profiles={},
            host_features=host_features(),
        )
        return {name: f"{name}.pt2" for name in program.graphs}


def _compile(name: str, exported: ExportedProgram, path: Path) -> None:
    try:
        torch._inductor.aoti_compile_and_package(
            exported, package_path=str(path), inductor_configs=dict(_SETTINGS)
        )
    except Exception as error:  # the compiler's errors share no base class
        raise BackendError(f"AOTInductor cannot compile {name}: {first_line(error)}") from error
    _LOG.debug("compiled %s: %d bytes", name, path.stat().st_size)
