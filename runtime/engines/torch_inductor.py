"""AOTInductor packages on the CPU: weights mapped once for all graphs, caches written in place.

The one file of the runtime that imports torch, and only when a bundle of the backend `torch` is
opened: such a bundle is torch code. Everything else of the runtime stays without it.
"""

from __future__ import annotations

import importlib
import json
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.engine_spec import SHARED, EngineSpec
from spec_compile.errors import ArtifactError, BackendError
from spec_compile.host_cpu import host_features
from spec_compile.manifest import GraphSpec, TensorSpec
from spec_compile.runtime.engine import Run
from spec_compile.runtime.loader import Bundle
from spec_compile.runtime.safetensors_file import StoredTensor, map_safetensors

_LOG = logging.getLogger(__name__)
WEIGHTS_FILE = "weights.safetensors"
_MODEL = "model"  # the name under which AOTInductor packages a lone graph


class TorchEngine:
    """Engine over AOTInductor; see `Engine` for the methods.

    Packages are shared by all generations and may be used from several threads; buffers belong to
    one generation.

    Args:
        bundle: an opened bundle whose code may be run.
        num_threads: threads of one graph call, set for the whole process (torch knows no other
            way); None leaves it as it is.

    Raises:
        ArtifactError: the bundle does not say what its code needs, or its weights are damaged.
        BackendError: torch is not installed, or the code is for another version or processor.
    """

    def __init__(self, bundle: Bundle, *, num_threads: int | None = None) -> None:
        self._bundle = bundle
        spec = _engine_spec(bundle)
        self._torch = _import_torch()
        _check_version(spec, str(self._torch.__version__))
        _check_host(spec, host_features())
        if num_threads is not None:
            self._torch.set_num_threads(num_threads)
        self._lock = threading.Lock()
        self._packages: dict[str, Any] = {}
        weights = map_safetensors(bundle.path(WEIGHTS_FILE))
        self._weights = {name: self._weight(stored) for name, stored in weights.tensors.items()}
        self._tables = _tables(weights.metadata, bundle)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Zeroed memory; the operating system provides its pages when they are first touched."""
        return np.zeros(shape, dtype=dtype)

    def bind(self, graph: str, buffers: Mapping[str, NDArray[Any]]) -> Run:
        """Tie buffers to a graph's tensors; see `Engine.bind`."""
        spec = self._bundle.manifest.graphs[graph]
        package = self._package(graph, spec)
        inputs = [self._tensor(tensor, buffers[tensor.name]) for tensor in spec.inputs]
        wanted = [
            (index, self._tensor(tensor, buffers[tensor.name]))
            for index, tensor in enumerate(t for t in spec.outputs if t.alias_of is None)
            if tensor.name in buffers
        ]

        def run() -> None:
            try:
                outputs = package.boxed_run(list(inputs))
                for index, target in wanted:
                    target.copy_(outputs[index])
            except RuntimeError as error:
                raise BackendError(f"torch failed in {graph}: {_first_line(error)}") from error

        return run

    def _package(self, graph: str, spec: GraphSpec) -> Any:
        with self._lock:
            if graph not in self._packages:
                started = time.perf_counter()
                self._packages[graph] = self._open(graph, spec)
                _LOG.debug("opened %s in %.2f s", graph, time.perf_counter() - started)
            return self._packages[graph]

    def _open(self, graph: str, spec: GraphSpec) -> Any:
        path, table = self._bundle.path(spec.file), self._tables[graph]
        try:
            # Not torch's own `aoti_load_package`, which imports the compiler and reads whatever
            # else a package may hold. One runner: a second would want scratch memory of its own.
            package = self._torch._C._aoti.AOTIModelPackageLoader(str(path), _MODEL, False, 1, -1)
            constants = {name: self._weights[table[name]] for name in package.get_constant_fqns()}
            # check that all are there; the package keeps addresses, and this engine the tensors
            package.load_constants(constants, False, True, True)
        except KeyError as error:
            raise ArtifactError(f"{path}: has no weights for {error}; export again") from error
        except RuntimeError as error:
            problem = _first_line(error)
            raise ArtifactError(f"{path}: torch cannot load it: {problem}") from error
        return package

    def _tensor(self, spec: TensorSpec, array: NDArray[Any]) -> Any:
        """The torch tensor on `array`'s memory."""
        if array.dtype != spec.dtype or not array.flags.c_contiguous:
            raise AssertionError(f"{spec.name}: buffer must be contiguous {spec.dtype}")
        return self._torch.from_numpy(array)

    def _weight(self, stored: StoredTensor) -> Any:
        dtype = getattr(self._torch, stored.dtype)
        if stored.raw.size == 0:
            return self._torch.empty(stored.shape, dtype=dtype)
        return self._torch.frombuffer(stored.raw, dtype=dtype).reshape(stored.shape)


def _engine_spec(bundle: Bundle) -> EngineSpec:
    spec = bundle.manifest.engine
    if spec is None or (spec.package, spec.weights) != ("torch", SHARED):
        raise ArtifactError(
            f"{bundle.folder}: its manifest does not say what its packages need; export it again"
        )
    return spec


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise BackendError(
            "torch is not installed, and this bundle is torch code; run: pip install torch, or "
            "export with --backend onnxruntime"
        ) from error


def _check_version(spec: EngineSpec, installed: str) -> None:
    # The part behind "+" tells builds for devices apart; this code is for the CPU.
    if spec.version.split("+")[0] != installed.split("+")[0]:
        raise BackendError(
            f"the bundle's code was compiled by torch {spec.version}, and here is {installed}; "
            "install that version, or export the bundle again with this one"
        )


def _check_host(spec: EngineSpec, features: tuple[str, ...]) -> None:
    missing = [name for name in spec.host_features if name not in features]
    if missing:
        raise BackendError(
            f"the bundle's code was compiled for a processor with {', '.join(missing)}, which this "
            "machine lacks; export it on such a machine, or with --backend onnxruntime"
        )


def _tables(metadata: Mapping[str, str], bundle: Bundle) -> dict[str, dict[str, str]]:
    """By graph: which stored weight each constant is."""
    try:
        tables = {graph: json.loads(metadata[graph]) for graph in bundle.manifest.graphs}
        return {graph: {str(k): str(v) for k, v in each.items()} for graph, each in tables.items()}
    except (KeyError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"{bundle.path(WEIGHTS_FILE)}: does not say which graph reads what; export again"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
