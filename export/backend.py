"""Where backends plug in: a protocol, and the one list of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from spec_compile.engine_spec import EngineSpec
from spec_compile.program import Program


@dataclass(frozen=True)
class BuildContext:
    """What a backend may need besides the program.

    Args:
        vocab_size: V.
        weight_names: `<owner>.<name in the checkpoint>` by the address of a weight's memory.
        max_length: tokens a row may hold.
        batch_size: most rows of a call.
        num_speculative_tokens: k.
        quantize: `int8` or `int4` by the owner of the weights, `target` or `draft`.
        compute_capabilities: devices to build for, as "8.9"; empty leaves the choice to the engine.
    """

    vocab_size: int
    weight_names: Mapping[int, str]
    max_length: int
    batch_size: int
    num_speculative_tokens: int
    quantize: Mapping[str, str] = field(default_factory=dict)
    compute_capabilities: tuple[str, ...] = ()


class Backend(Protocol):
    """Turns a program into engine files. May not change the program, nor write anywhere else.

    Attributes:
        name: what users give as `--backend`.
        modules: what it imports.
        engine: what the manifest says of the engines of the last `build`; None needs no saying.
    """

    name: str
    modules: tuple[str, ...]
    engine: EngineSpec | None

    def build(self, program: Program, context: BuildContext, folder: Path) -> Mapping[str, str]:
        """Write the engines of every graph into `folder`.

        Returns:
            The main file of each graph, by graph name.

        Raises:
            BackendError: the backend cannot express the program.
        """


_BACKENDS = {
    "onnxruntime": ("spec_compile.export.onnxruntime", "OnnxRuntimeBackend"),
    "tensorrt": ("spec_compile.export.tensorrt", "TensorRtBackend"),
    "tensorrt-rtx": ("spec_compile.export.tensorrt", "TensorRtRtxBackend"),
    "torch": ("spec_compile.export.torch_inductor", "TorchBackend"),
}


def backend(name: str) -> Backend:
    """The backend called `name`; its own packages are imported here, not before.

    Raises:
        BackendError: it cannot build on this machine.
    """
    module, kind = _BACKENDS[name]
    return cast(Backend, getattr(import_module(module), kind)())
