"""The fused graphs as torch modules behind the runtime's `Engine`: eager, or by torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spec_compile.export.torch_lowering import in_place_module
from spec_compile.program import Program
from spec_compile.runtime.engine import Run


class TorchModules:
    """Engine over modules; the decoder, and so the loop and its tokens, are the product's own.

    Args:
        program: the graphs of a bundle.
        compiled: put each module through torch.compile, with free sizes.
    """

    def __init__(self, program: Program, *, compiled: bool) -> None:
        self._graphs = program.graphs
        self._modules: dict[str, Callable[..., Any]] = {}
        for name, graph in program.graphs.items():
            module = in_place_module(graph)
            self._modules[name] = torch.compile(module, dynamic=True) if compiled else module

    def zeros(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """See `Engine.zeros`."""
        return np.zeros(shape, dtype=dtype)

    def bind(self, graph: str, buffers: Mapping[str, NDArray[Any]]) -> Run:
        """See `Engine.bind`."""
        spec, module = self._graphs[graph], self._modules[graph]
        inputs = [torch.from_numpy(buffers[tensor.name]) for tensor in spec.inputs]
        names = [tensor.name for tensor in spec.outputs if not tensor.is_cache]

        def run() -> None:
            with torch.inference_mode():
                outputs = module(*inputs)
            for name, value in zip(names, outputs, strict=True):
                if name in buffers:
                    torch.from_numpy(buffers[name]).copy_(value)

        return run
