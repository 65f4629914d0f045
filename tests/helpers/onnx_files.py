"""Programs built by the ONNX Runtime backend, and their graphs run by tensor names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from spec_compile.export.backend import BuildContext
from spec_compile.export.onnx_model import translate_program
from spec_compile.export.onnxruntime import write_models
from spec_compile.export.weight_names import name_weights_of
from spec_compile.program import Graph, Program


def build_onnx(
    program: Program, folder: Path, vocab_size: int, **models: PreTrainedModel
) -> dict[str, Path]:
    """The standard ONNX files of `program` in `folder`, by graph; weights are named by `models`.

    Any ONNX engine reads them: they are not lowered.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {**name_weights_of(models), **program.weight_names}
    context = BuildContext(vocab_size, names, max_length=1, batch_size=1, num_speculative_tokens=1)
    files = write_models(translate_program(program, context), folder)
    return {name: folder / file for name, file in files.items()}


class OnnxFile:
    """An ONNX file in ONNX Runtime, called like the graph that it was made from."""

    def __init__(self, path: Path, graph: Graph) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.graph = graph

    def __call__(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs by name from inputs by name; inputs that the graph lacks are left out."""
        feeds: dict[str, NDArray[Any]] = {
            spec.name: np.ascontiguousarray(tensors[spec.name].numpy())
            for spec in self.graph.inputs
        }
        names = [spec.name for spec in self.graph.outputs]
        values = self.session.run(names, feeds)
        return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}
