"""ONNX Runtime on the CPU: sessions opened on first use, buffers bound once, nothing copied."""

from __future__ import annotations

import importlib
import logging
import math
import mmap
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.errors import ArtifactError, BackendError
from spec_compile.manifest import GraphSpec, TensorSpec
from spec_compile.runtime.engine import Run
from spec_compile.runtime.loader import Bundle
from spec_compile.runtime.onnx_file import check_external_files

_LOG = logging.getLogger(__name__)
_FATAL_ONLY = 4
_LARGE = 1 << 16  # bytes; from here on fresh pages cost less than clearing used ones
# Manifest dtype -> (ONNX element type, NumPy type of the buffer, ONNX Runtime's name).
# NumPy has no bfloat16: its buffers hold the raw 16 bits.
_ELEMENT_TYPES: Mapping[str, tuple[int, str, str]] = {
    "float32": (1, "float32", "tensor(float)"),
    "uint8": (2, "uint8", "tensor(uint8)"),
    "int8": (3, "int8", "tensor(int8)"),
    "int16": (5, "int16", "tensor(int16)"),
    "int32": (6, "int32", "tensor(int32)"),
    "int64": (7, "int64", "tensor(int64)"),
    "bool": (9, "bool", "tensor(bool)"),
    "float16": (10, "float16", "tensor(float16)"),
    "float64": (11, "float64", "tensor(double)"),
    "bfloat16": (16, "uint16", "tensor(bfloat16)"),
}


class OnnxRuntimeEngine:
    """Engine over ONNX Runtime's CPU provider; see `Engine` for the methods.

    Sessions are shared by all generations and may be used from several threads; buffers belong to
    one generation.

    Args:
        bundle: an opened bundle.
        num_threads: threads of one graph call; None takes one per physical core.
        log_severity: least severe message of ONNX Runtime to print (2 warnings, 4 none
            but fatal ones: errors are raised).

    Raises:
        BackendError: onnxruntime is not installed.
    """

    def __init__(
        self, bundle: Bundle, *, num_threads: int | None = None, log_severity: int = _FATAL_ONLY
    ) -> None:
        self._ort = _import_onnxruntime()
        self._bundle = bundle
        self._options = session_options(self._ort, num_threads, log_severity)
        self._run_options = self._ort.RunOptions()
        self._run_options.log_severity_level = log_severity
        self._sessions: dict[str, Any] = {}
        self._lock = threading.Lock()

    def zeros(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Zeroed memory; the operating system provides its pages when they are first touched.

        NumPy's own zeros are cleared by hand where the allocator has memory to use again, and
        caches are large while most of their pages are never reached.
        """
        element = np.dtype(_ELEMENT_TYPES[dtype][1])
        size = math.prod(shape) * element.itemsize
        if size < _LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
            return np.zeros(shape, dtype=element)
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(pages, dtype=element).reshape(shape)

    def bind(self, graph: str, buffers: Mapping[str, NDArray[Any]]) -> Run:
        """Tie buffers to a graph's tensors; see `Engine.bind`."""
        spec = self._bundle.manifest.graphs[graph]
        session = self._session(graph, spec)
        binding = session.io_binding()
        for tensor in spec.inputs:
            _bind(binding.bind_input, tensor, buffers[tensor.name])
        for tensor in spec.outputs:
            source = tensor.alias_of or tensor.name
            if source in buffers:
                _bind(binding.bind_output, tensor, buffers[source])
        held = tuple(buffers.values())  # the binding knows addresses only

        def run(_held: tuple[NDArray[Any], ...] = held) -> None:
            try:
                session.run_with_iobinding(binding, self._run_options)
            except Exception as error:  # ONNX Runtime's errors share no base class
                raise BackendError(
                    f"ONNX Runtime failed in {graph}: {_first_line(error)}"
                ) from error

        return run

    def _session(self, graph: str, spec: GraphSpec) -> Any:
        with self._lock:
            if graph not in self._sessions:
                self._sessions[graph] = self._open(graph, spec)
            return self._sessions[graph]

    def _open(self, graph: str, spec: GraphSpec) -> Any:
        path = self._bundle.path(spec.file)
        check_external_files(path, spec.file, frozenset(self._bundle.manifest.files))
        started = time.perf_counter()
        try:
            session = self._ort.InferenceSession(
                path, self._options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's errors share no base class
            problem = _first_line(error)
            raise ArtifactError(f"{path}: ONNX Runtime cannot load it: {problem}") from error
        _check_tensors(path.name, spec.inputs, session.get_inputs())
        _check_tensors(path.name, spec.outputs, session.get_outputs())
        _LOG.debug("opened %s in %.2f s", graph, time.perf_counter() - started)
        return session


def _import_onnxruntime() -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise BackendError(
            "onnxruntime is not installed; run: pip install 'spec-compile[cpu]'"
        ) from error


def session_options(ort: Any, num_threads: int | None, log_severity: int = _FATAL_ONLY) -> Any:
    """How the engine opens its sessions; `ort` is the module onnxruntime."""
    options = ort.SessionOptions()
    options.log_severity_level = log_severity
    # Idle threads of one session spin on the cores that the next session's run needs: let them
    # spin inside a run only (without any spinning a small model is a half slower).
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if num_threads is not None:
        options.intra_op_num_threads = num_threads
    return options


def _bind(bind: Any, tensor: TensorSpec, array: NDArray[Any]) -> None:
    element_type, buffer_type, _ = _ELEMENT_TYPES[tensor.dtype]
    if array.dtype != buffer_type or not array.flags.c_contiguous:
        raise AssertionError(f"{tensor.name}: buffer must be contiguous {buffer_type}")
    bind(tensor.name, "cpu", 0, element_type, array.shape, array.ctypes.data)


def _check_tensors(file: str, expected: tuple[TensorSpec, ...], actual: Any) -> None:
    """The manifest's tensor table must be the graph's own."""
    found = {tensor.name: (tensor.type, tensor.shape) for tensor in actual}
    if set(found) != {tensor.name for tensor in expected}:
        raise ArtifactError(
            f"{file}: its tensors are not those of the manifest; export the bundle again"
        )
    for tensor in expected:
        element_type, shape = found[tensor.name]
        fits = (
            element_type == _ELEMENT_TYPES[tensor.dtype][2]
            and len(shape) == len(tensor.shape)
            and all(
                actual_size == size
                for actual_size, size in zip(shape, tensor.shape, strict=True)
                if isinstance(actual_size, int) and isinstance(size, int)
            )
        )
        if not fits:
            raise ArtifactError(
                f"{file}: tensor {tensor.name!r} is not as in the manifest; export the bundle again"
            )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
