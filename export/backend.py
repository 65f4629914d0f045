"""Where backends plug in: a protocol, and the one list of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from spec_compile.program import Program


@dataclass(frozen=True)
class BuildContext:
    """What a backend may need besides the program.

    Args:
        vocab_size: V.
        weight_names: `<owner>.<name in the checkpoint>` by the address of a weight's memory.
        max_length: tokens a row may hold.
        batch_size: most rows of a call.
        quantize: `int8` or `int4` by the owner of the weights, `target` or `draft`.
    """

    vocab_size: int
    weight_names: Mapping[int, str]
    max_length: int
    batch_size: int
    quantize: Mapping[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """Turns a program into engine files. May not change the program, nor write anywhere else."""

    name: str
    modules: tuple[str, ...]

    def build(self, program: Program, context: BuildContext, folder: Path) -> Mapping[str, str]:
        """Write the engines of every graph into `folder`.

        Returns:
            The main file of each graph, by graph name.

        Raises:
            BackendError: the backend cannot express the program.
        """


_BACKENDS = {"onnxruntime": ("spec_compile.export.onnxruntime", "OnnxRuntimeBackend")}


def backend(name: str) -> Backend:
    """The backend called `name`; its own packages are imported here, not before."""
    module, kind = _BACKENDS[name]
    return cast(Backend, getattr(import_module(module), kind)())
