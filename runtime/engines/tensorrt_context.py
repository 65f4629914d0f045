"""A deserialized engine, and an execution context of it for one optimization profile."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spec_compile.engine_spec import WRITTEN_AGAIN
from spec_compile.errors import ArtifactError, BackendError
from spec_compile.manifest import GraphSpec
from spec_compile.runtime.engines.cuda import Driver

_LOG = logging.getLogger(__name__)
_DTYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}


class LoadedEngine:
    """One graph's engine.

    Args:
        trt: the module that runs it.
        path: its file.
        spec: what the manifest says of the graph.

    Attributes:
        written_again: inputs for caches that an earlier write of the round has changed.

    Raises:
        ArtifactError: the engine's tensors are not those of the manifest.
        BackendError: the package refuses the file.
    """

    def __init__(self, trt: Any, path: Path, spec: GraphSpec) -> None:
        self.trt, self.name = trt, path.stem
        self._logger, self.errors = _logger(trt)
        self._runtime = trt.Runtime(self._logger)
        self.raw = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self.raw is None:
            raise BackendError(
                f"{path}: {trt.__name__} cannot load it on this device: {last_error(self.errors)}"
            )
        count = self.raw.num_io_tensors
        names = [self.raw.get_tensor_name(index) for index in range(count)]
        self.written_again = tuple(name for name in names if name.endswith(WRITTEN_AGAIN))
        _check_tensors(self.raw, [n for n in names if n not in self.written_again], spec, path)


class Context:
    """An execution context with scratch memory of its own.

    Args:
        engine: what it executes.
        driver: the device.
        profile: index of the optimization profile.
        specialize: make kernels for the very sizes of each call before it is run.

    Attributes:
        recordable: whether runs can be recorded at all, as far as is known.
    """

    def __init__(
        self, engine: LoadedEngine, driver: Driver, profile: int, *, specialize: bool
    ) -> None:
        self.engine, self.driver, self.profile = engine, driver, profile
        self._user: weakref.ref[object] | None = None
        self.recordable = True
        self._specialize = specialize
        self._stream = 0

    def open(self, stream: int) -> None:
        """Make the context; its work goes to `stream`.

        Raises:
            BackendError: the package refuses.
            MemoryError: the device has too little memory.
        """
        engine, self._stream = self.engine.raw, stream
        self._raw = engine.create_execution_context(_config(self.engine, self._specialize))
        if self._raw is None:
            self._refuse("no execution context")
        size = engine.get_device_memory_size_for_profile_v2(self.profile)
        if size > 0:
            self._scratch = self.driver.allocate(size)
            self._raw.set_device_memory(self._scratch, size)
        if not self._raw.set_optimization_profile_async(self.profile, stream):
            self._refuse(f"profile {self.profile}")

    def is_used_by(self, user: object) -> bool:
        """Whether `user` bound the tensors last."""
        return self._user is not None and self._user() is user

    def bind(
        self,
        user: object,
        addresses: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        """Set the shapes of all inputs and the addresses of all tensors, for runs of `user`."""
        self._user = None
        for name, shape in shapes.items():
            if not self._raw.set_input_shape(name, shape):
                self._refuse(f"shape {list(shape)} of {name}")
        for name, address in addresses.items():
            if not self._raw.set_tensor_address(name, address):
                self._refuse(f"the memory of {name}")
        self._user = weakref.ref(user)  # its buffers go when it goes

    def enqueue(self, stream: int) -> None:
        """Put one execution on the stream."""
        if not self._raw.execute_async_v3(stream):
            self._refuse("a run")

    def may_record(self, user: object) -> bool:
        """Whether a recording of `user`'s next run would be what a plain run is.

        The run before must have been of the same shapes and addresses.
        """
        capturable = getattr(self._raw, "is_stream_capturable", None)
        if capturable is not None and not capturable(self._stream):
            self.recordable = False
        return self.recordable and self.is_used_by(user)

    def record(self, work: Callable[[], None]) -> int | None:
        """Record `work` on the stream; None, and never tried again, when that cannot be done."""
        try:
            return self.driver.capture(self._stream, work)
        except BackendError as error:
            _LOG.info("%s is run without a CUDA graph: %s", self.engine.name, error)
            self.recordable = False
            self._user = None  # what a failed capture left in the context is unknown
            return None

    def _refuse(self, what: str) -> None:
        trt = self.engine.trt.__name__
        raise BackendError(
            f"{trt} refuses {what} in {self.engine.name}: {last_error(self.engine.errors)}"
        )


def _config(engine: LoadedEngine, specialize: bool) -> Any:
    """Memory from us; TensorRT for RTX also compiles kernels on this device, now or later."""
    trt, config = engine.trt, engine.raw.create_runtime_config()
    config.set_execution_context_allocation_strategy(
        trt.ExecutionContextAllocationStrategy.USER_MANAGED
    )
    strategies = getattr(trt, "DynamicShapesKernelSpecializationStrategy", None)
    if strategies is not None:
        # A recording keeps its kernels, so the good ones have to be there before it is made.
        strategy = strategies.EAGER if specialize else strategies.LAZY
        config.dynamic_shapes_kernel_specialization_strategy = strategy
    return config


def _check_tensors(engine: Any, names: list[str], spec: GraphSpec, path: Path) -> None:
    expected = {tensor.name: tensor for tensor in (*spec.inputs, *spec.outputs)}
    if set(names) != set(expected):
        raise ArtifactError(f"{path}: its tensors are not the manifest's; export the bundle again")
    for name, tensor in expected.items():
        kind = engine.get_tensor_dtype(name).name
        sizes = tuple(-1 if isinstance(size, str) else size for size in tensor.shape)
        found = (_DTYPES.get(kind, kind.lower()), tuple(engine.get_tensor_shape(name)))
        if found != (tensor.dtype, sizes):
            raise ArtifactError(
                f"{path}: tensor {name!r} is not as in the manifest; export the bundle again"
            )


def _logger(trt: Any) -> tuple[Any, list[str]]:
    errors: list[str] = []

    def start(self: Any) -> None:
        trt.ILogger.__init__(self)

    def log(self: Any, severity: Any, message: str) -> None:
        del self
        if "ERROR" in severity.name:
            errors.append(message)

    return type("EngineLogger", (trt.ILogger,), {"__init__": start, "log": log})(), errors


def last_error(errors: list[str]) -> str:
    """The last error that the package told of, on one line."""
    return " ".join(errors[-1].split())[:300] if errors else "it gives no reason"
