"""TensorRT on an NVIDIA device: caches stay there, a round is one replay of a CUDA graph.

One stream and one lock serve all generations: a device computes one batch at a time anyway.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from spec_compile.engine_spec import WRITTEN_AGAIN, EngineSpec
from spec_compile.errors import ArtifactError, BackendError
from spec_compile.manifest import GraphSpec, TensorSpec
from spec_compile.runtime.engine import Run
from spec_compile.runtime.engines.cuda import CudaDriver, Driver
from spec_compile.runtime.engines.device_memory import DeviceBuffer, MemoryPool, Shuttle
from spec_compile.runtime.engines.tensorrt_context import Context, LoadedEngine
from spec_compile.runtime.loader import Bundle

_LOG = logging.getLogger(__name__)
_EXTRAS = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}


class TensorRtEngine:
    """Engine over TensorRT or TensorRT for RTX; see `Engine` for the methods.

    Attributes:
        launched: runs put on the stream so far.
        finished: of these, how many are known to be done.

    Args:
        bundle: an opened bundle of serialized engines.
        driver: the device; None takes the first CUDA device.
        trt: the module that runs the engines; None imports the one that the manifest names.

    Raises:
        ArtifactError: the bundle does not say what its engines need.
        BackendError: no package, no driver, or a device or version that the engines are not for.
    """

    def __init__(self, bundle: Bundle, *, driver: Driver | None = None, trt: Any = None) -> None:
        self._bundle = bundle
        self.spec = _engine_spec(bundle)
        self._trt = _import_package(self.spec.package) if trt is None else trt
        _check_version(self.spec, str(self._trt.__version__))
        self.driver: Driver = CudaDriver() if driver is None else driver
        _check_device(self.spec, self.driver.compute_capability())
        self.stream = self.driver.new_stream()
        self.pool = MemoryPool(self.driver)
        self.lock = threading.RLock()
        self.launched = self.finished = 0
        self._engines: dict[str, LoadedEngine] = {}
        self._contexts: dict[tuple[str, int], Context] = {}

    def zeros(self, shape: tuple[int, ...], dtype: str) -> DeviceBuffer:
        """Zeroed memory on the device."""
        buffer = self.pool.buffer(shape, dtype)
        with self.lock:
            self.driver.clear(buffer.address, buffer.nbytes, self.stream)
        return buffer

    def bind(self, graph: str, buffers: Mapping[str, Any]) -> Run:
        """Tie buffers to a graph's tensors; see `Engine.bind`.

        NumPy arrays are copied to the device before a run, or from it after.
        """
        spec = self._bundle.manifest.graphs[graph]
        for tensor in (*spec.inputs, *spec.outputs):
            _check_buffer(tensor, buffers.get(tensor.alias_of or tensor.name))
        rows, tokens = buffers["tokens"].shape
        index = self.spec.profile(graph, rows, tokens)
        if index is None:
            raise BackendError(f"no profile of {graph} takes {rows} rows of {tokens} tokens")
        with self.lock:
            return _BoundGraph(self, self._context(graph, index), spec, buffers)

    def synchronize(self) -> None:
        """Wait for every run so far."""
        self.driver.synchronize(self.stream)
        self.finished = self.launched

    def _context(self, graph: str, profile: int) -> Context:
        """One context a profile, so that a captured round stays valid while prompts are run."""
        if (graph, profile) not in self._contexts:
            # Rounds come often and always in the same sizes: worth kernels of their own.
            context = Context(self._engine(graph), self.driver, profile, specialize=profile == 0)
            context.open(self.stream)
            self._contexts[graph, profile] = context
        return self._contexts[graph, profile]

    def _engine(self, graph: str) -> LoadedEngine:
        if graph not in self._engines:
            started = time.perf_counter()
            spec = self._bundle.manifest.graphs[graph]
            path = self._bundle.path(spec.file)
            self._engines[graph] = LoadedEngine(self._trt, path, spec)
            _LOG.debug("opened %s in %.2f s", graph, time.perf_counter() - started)
        return self._engines[graph]


class _BoundGraph:
    """A graph on one set of buffers: called, it runs once.

    The first call puts the work on the stream piece by piece, which also lets TensorRT settle what
    depends on shapes. The second records it, and from then on the recording is replayed.
    """

    def __init__(
        self, engine: TensorRtEngine, context: Context, spec: GraphSpec, buffers: Mapping[str, Any]
    ) -> None:
        self._engine, self._context = engine, context
        self._buffers = tuple(buffers.values())  # the context knows addresses only
        driver, pool = engine.driver, engine.pool
        arrays = {name: b for name, b in buffers.items() if isinstance(b, np.ndarray)}
        self._inputs = Shuttle(
            driver, pool, {t.name: arrays[t.name] for t in spec.inputs if t.name in arrays}
        )
        self._outputs = Shuttle(
            driver, pool, {t.name: arrays[t.name] for t in spec.outputs if t.name in arrays}
        )
        rows = int(buffers["tokens"].shape[0])
        self._addresses: dict[str, int] = {**self._inputs.addresses, **self._outputs.addresses}
        self._unread = self._bind_device(spec, buffers, rows)
        self._shapes = {t.name: tuple(buffers[t.name].shape) for t in spec.inputs}
        for name in context.engine.written_again:
            source = spec.output(name.removesuffix(WRITTEN_AGAIN))
            assert source is not None and source.alias_of is not None
            self._addresses[name] = self._addresses[source.alias_of]
            self._shapes[name] = self._shapes[source.alias_of]
        self._recording: int | None = None
        self._calls, self._ticket = 0, 0

    def __call__(self) -> None:
        """Run the graph once and wait for what the host reads of it."""
        with self._engine.lock:
            if self._ticket > self._engine.finished:  # that run still reads our pinned memory
                self._engine.synchronize()
            self._inputs.read_arrays()
            self._launch()
            self._engine.launched += 1
            self._ticket = self._engine.launched
            if not self._outputs.is_empty:
                self._engine.synchronize()
                self._outputs.write_arrays()

    def __del__(self) -> None:
        recording = getattr(self, "_recording", None)
        if recording is not None:
            with self._engine.lock:
                self._engine.driver.forget(recording)

    def _launch(self) -> None:
        engine = self._engine
        self._calls += 1
        if self._recording is None and self._calls > 1 and self._context.may_record(self):
            self._recording = self._context.record(self._enqueue)
        if self._recording is not None:
            engine.driver.replay(self._recording, engine.stream)
            return
        if not self._context.is_used_by(self):
            self._context.bind(self, self._addresses, self._shapes)
        self._enqueue()

    def _enqueue(self) -> None:
        stream = self._engine.stream
        self._inputs.to_device(stream)
        self._context.enqueue(stream)
        self._outputs.to_host(stream)

    def _bind_device(
        self, spec: GraphSpec, buffers: Mapping[str, Any], rows: int
    ) -> list[DeviceBuffer]:
        """Addresses of what stays on the device; outputs that nobody wants need memory, too."""
        unread = []
        for tensor in (*spec.inputs, *spec.outputs):
            if tensor.name in self._addresses:
                continue
            buffer = buffers.get(tensor.alias_of or tensor.name)
            if buffer is None:
                shape = tuple(rows if size == "B" else int(size) for size in tensor.shape)
                buffer = self._engine.pool.buffer(shape, tensor.dtype)
                unread.append(buffer)
            self._addresses[tensor.name] = buffer.address
        return unread


def _engine_spec(bundle: Bundle) -> EngineSpec:
    manifest = bundle.manifest
    if manifest.engine is None or manifest.engine.package not in _EXTRAS:
        raise ArtifactError(
            f"{bundle.folder}: the manifest does not name the package that runs its engines; "
            "export the bundle again"
        )
    return manifest.engine


def _import_package(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise BackendError(
            f"{package} is not installed; run: pip install 'spec-compile[{_EXTRAS[package]}]'"
        ) from error


def _check_version(spec: EngineSpec, installed: str) -> None:
    if installed != spec.version:
        raise BackendError(
            f"the bundle's engines are of {spec.package} {spec.version}, here is {installed}; "
            "install that version, or export the bundle again with this one"
        )


def _check_device(spec: EngineSpec, capability: str) -> None:
    if spec.compute_capabilities and capability not in spec.compute_capabilities:
        raise BackendError(
            f"the bundle's engines are for compute capability "
            f"{', '.join(spec.compute_capabilities)}, this device has {capability}; export the "
            "bundle for it"
        )


def _check_buffer(tensor: TensorSpec, buffer: Any) -> None:
    if buffer is None:
        return
    contiguous = not isinstance(buffer, np.ndarray) or buffer.flags.c_contiguous
    if str(buffer.dtype) != tensor.dtype or not contiguous:
        raise AssertionError(f"{tensor.name}: buffer must be contiguous {tensor.dtype}")
