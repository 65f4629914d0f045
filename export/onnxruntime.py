"""The ONNX Runtime backend: one standard ONNX file a graph, weights beside them stored once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from spec_compile.export.backend import BuildContext
from spec_compile.export.onnx_model import OnnxTranslator
from spec_compile.export.onnx_weights import store_weights
from spec_compile.program import Program


class OnnxRuntimeBackend:
    """See `Backend`."""

    name = "onnxruntime"
    modules = ("onnx", "onnxscript", "onnx_ir")
    engine = None

    def build(self, program: Program, context: BuildContext, folder: Path) -> Mapping[str, str]:
        """Translate every graph and write it with its weights; see `Backend.build`."""
        translator = OnnxTranslator(context.vocab_size, context.weight_names)
        models = {name: translator.translate(graph) for name, graph in program.graphs.items()}
        store_weights(models, folder)
        for name, model in models.items():
            ir.save(model, folder / f"{name}.onnx")
        return {name: f"{name}.onnx" for name in models}
