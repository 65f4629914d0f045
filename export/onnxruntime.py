"""The ONNX Runtime backend: one ONNX file a graph, weights beside them stored once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from spec_compile.export.backend import BuildContext
from spec_compile.export.cpu.pipeline import lower_for_cpu
from spec_compile.export.onnx_model import translate_program
from spec_compile.export.onnx_weights import store_weights
from spec_compile.program import Program


class OnnxRuntimeBackend:
    """See `Backend`."""

    name = "onnxruntime"
    modules = ("onnx", "onnxscript", "onnx_ir")
    engine = None

    def build(self, program: Program, context: BuildContext, folder: Path) -> Mapping[str, str]:
        """Translate every graph, lower it and write it with its weights; see `Backend.build`."""
        models = translate_program(program, context)
        lower_for_cpu(models, context)
        if context.quantize:
            # Imported here: only this needs the engine's own package.
            from spec_compile.export.quantize import Quantiser

            Quantiser(context.quantize).run(models)
        return write_models(models, folder)


def write_models(models: Mapping[str, ir.Model], folder: Path) -> Mapping[str, str]:
    """Write models and their weights into `folder`.

    Returns:
        The file of each model, by its name.
    """
    store_weights(models, folder)
    for name, model in models.items():
        ir.save(model, folder / f"{name}.onnx")
    return {name: f"{name}.onnx" for name in models}
