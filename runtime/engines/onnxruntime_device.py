"""ONNX Runtime on a device: caches stay there, and each host array has a twin there."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spec_compile.errors import BackendError
from spec_compile.manifest import GraphSpec, TensorSpec
from spec_compile.runtime.engine import Run
from spec_compile.runtime.engines.onnxruntime import OnnxRuntimeEngine
from spec_compile.runtime.loader import Bundle

_NOT_RECORDED = "-1"


@dataclass(frozen=True)
class Provider:
    """How ONNX Runtime reaches a device.

    Args:
        name: of its execution provider.
        memory: its word for the memory that the provider computes in.
        graph_option: what makes the provider record CUDA graphs; None where it cannot.
    """

    name: str
    memory: str
    graph_option: str | None


PROVIDERS: Mapping[str, Provider] = {
    "cuda": Provider("CUDAExecutionProvider", "cuda", "enable_cuda_graph"),
    "tensorrt": Provider("TensorrtExecutionProvider", "cuda", "trt_cuda_graph_enable"),
    "tensorrt-rtx": Provider("NvTensorRTRTXExecutionProvider", "cuda", "enable_cuda_graph"),
}


class OnnxRuntimeDeviceEngine(OnnxRuntimeEngine):
    """Engine over one of ONNX Runtime's device providers; see `Engine` for the methods.

    Args:
        bundle: an opened bundle.
        device: a name in PROVIDERS, or a provider.
        cuda_graph: record the second run of each binding, and replay it from then on.

    Raises:
        BackendError: onnxruntime is not installed, or without this provider.
    """

    def __init__(self, bundle: Bundle, device: str | Provider, *, cuda_graph: bool = False) -> None:
        super().__init__(bundle)
        self.provider = PROVIDERS[device] if isinstance(device, str) else device
        self._cuda_graph = cuda_graph
        self._recordings = itertools.count(1)
        available = self._ort.get_available_providers()
        if self.provider.name not in available:
            raise BackendError(
                f"ONNX Runtime here has no {self.provider.name}, only {', '.join(available)}; "
                "install a build that has it, such as 'spec-compile[gpu]' for CUDA in place of "
                "'spec-compile[cpu]', or take the device cpu"
            )

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Zeroed memory on the device."""
        return self._on_device(np.zeros(shape, dtype=dtype))

    def bind(self, graph: str, buffers: Mapping[str, Any]) -> Run:
        """Tie buffers to a graph's tensors; see `Engine.bind`.

        NumPy arrays are copied to their twins on the device before a run, or from them after.
        """
        spec = self._bundle.manifest.graphs[graph]
        session = self._session(graph, spec)
        wanted = [t for t in spec.outputs if (t.alias_of or t.name) in buffers]
        twins = {
            tensor.alias_of or tensor.name: self._twin(tensor, buffers)
            for tensor in (*spec.inputs, *wanted)
        }
        binding = session.io_binding()
        for tensor in spec.inputs:
            binding.bind_ortvalue_input(tensor.name, twins[tensor.name])
        for tensor in spec.outputs:
            if tensor in wanted:
                source = tensor.alias_of or tensor.name
                binding.bind_ortvalue_output(tensor.name, twins[source])
            else:
                binding.bind_output(tensor.name, self.provider.memory)
        given = _host_arrays(spec.inputs, buffers, twins)
        results = _host_arrays(wanted, buffers, twins)
        settings = self._run_settings()

        def run() -> None:
            try:
                for array, twin in given:
                    twin.update_inplace(array)
                session.run_with_iobinding(binding, next(settings))
                for array, twin in results:
                    np.copyto(array, twin.numpy())
            except Exception as error:  # ONNX Runtime's errors share no base class
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
                raise BackendError(f"ONNX Runtime failed in {graph}: {reason}") from error

        return run

    def _providers(self) -> list[Any]:
        options = {"device_id": "0"} if self.provider.memory == "cuda" else {}
        if self._cuda_graph and self.provider.graph_option:
            options[self.provider.graph_option] = "1"
        return [(self.provider.name, options)]

    def _open(self, graph: str, spec: GraphSpec) -> Any:
        session = super()._open(graph, spec)
        used = session.get_providers()
        if used[0] != self.provider.name:
            raise BackendError(
                f"ONNX Runtime could not start {self.provider.name} and fell back to {used[0]}: "
                "look whether the driver, the CUDA libraries and the device are there"
            )
        return session

    def _run_settings(self) -> Any:
        """The options of each run: the first settles shapes and memory, later ones are replayed."""
        if not self._cuda_graph:
            return itertools.repeat(self._run_options)
        number = str(next(self._recordings))
        first, later = (self._options_of_run(name) for name in (_NOT_RECORDED, number))
        return itertools.chain([first], itertools.repeat(later))

    def _options_of_run(self, recording: str) -> Any:
        options = self._ort.RunOptions()
        options.log_severity_level = self._run_options.log_severity_level
        options.add_run_config_entry("gpu_graph_id", recording)
        return options

    def _twin(self, tensor: TensorSpec, buffers: Mapping[str, Any]) -> Any:
        """The memory on the device that stands for a buffer."""
        buffer = buffers[tensor.alias_of or tensor.name]
        if not isinstance(buffer, np.ndarray):
            return buffer
        if buffer.dtype != tensor.dtype or not buffer.flags.c_contiguous:
            raise AssertionError(f"{tensor.name}: buffer must be contiguous {tensor.dtype}")
        return self._on_device(buffer.copy())

    def _on_device(self, array: Any) -> Any:
        return self._ort.OrtValue.ortvalue_from_numpy(array, self.provider.memory, 0)


def _host_arrays(
    tensors: Any, buffers: Mapping[str, Any], twins: Mapping[str, Any]
) -> list[tuple[Any, Any]]:
    """Arrays on the host with their twins; empty ones need no copy."""
    names = [tensor.name for tensor in tensors if tensor.alias_of is None]
    arrays = [(buffers[name], twins[name]) for name in names]
    return [(a, twin) for a, twin in arrays if isinstance(a, np.ndarray) and a.size]
