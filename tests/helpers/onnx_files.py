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
from spec_compile.export.onnxruntime import OnnxRuntimeBackend
from spec_compile.program import Graph, Program


def weight_names(**models: PreTrainedModel) -> dict[int, str]:
    """`<owner>.<name>` by address of the weights of `models`, given by owner."""
    names: dict[int, str] = {}
    for owner, model in models.items():
        for name, weight in model.named_parameters():
            names.setdefault(weight.data_ptr(), f"{owner}.{name}")
    return names


def build_onnx(
    program: Program, folder: Path, vocab_size: int, **models: PreTrainedModel
) -> dict[str, Path]:
    """The ONNX files of `program` in `folder`, by graph; weights are named after `models`."""
    folder.mkdir(parents=True, exist_ok=True)
    context = BuildContext(
        vocab_size,
        weight_names(**models),
        max_length=64,
        batch_size=8,
        num_speculative_tokens=4,
    )
    files = OnnxRuntimeBackend().build(program, context, folder)
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
