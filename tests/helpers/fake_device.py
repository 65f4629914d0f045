"""A device and a TensorRT made of host memory and ONNX Runtime, strict about what is asked of them.

Work on a stream is done at `synchronize` and not before, fresh memory holds garbage, and every
address has to lie in memory that is still allocated: what an engine does too early, forgets to
clear or frees too soon changes tokens or raises. An engine file is an ONNX file, run in place on
the very addresses that were bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from spec_compile.errors import BackendError

_TYPES = {
    "tensor(float)": (1, "FLOAT", 4),
    "tensor(int64)": (7, "INT64", 8),
    "tensor(float16)": (10, "HALF", 2),
}
_GARBAGE = 0xAB


class FakeDriver:
    """`Driver` over host memory."""

    def __init__(self, capability: str = "8.9", capacity: int = 1 << 30) -> None:
        self.capability, self.capacity = capability, capacity
        self.memory: dict[int, NDArray[np.uint8]] = {}
        self.queue: list[Callable[[], None]] = []
        self.capturing: list[Callable[[], None]] | None = None
        self.recordings: dict[int, list[Callable[[], None]]] = {}
        self.calls: list[str] = []
        self.refuse_capture = False

    def compute_capability(self) -> str:
        return self.capability

    def allocate(self, size: int) -> int:
        if sum(len(each) for each in self.memory.values()) + size > self.capacity:
            raise MemoryError(size)
        block = np.full(size, _GARBAGE, dtype=np.uint8)
        self.memory[block.ctypes.data] = block
        return block.ctypes.data

    def free(self, address: int) -> None:
        del self.memory[address]

    def pinned(self, size: int) -> NDArray[np.uint8]:
        return np.full(size, _GARBAGE, dtype=np.uint8)

    def new_stream(self) -> int:
        return 7

    def view(self, address: int, size: int) -> NDArray[np.uint8]:
        """The bytes at `address`, all of which lie in one allocation."""
        for start, block in self.memory.items():
            if start <= address and address + size <= start + len(block):
                return block[address - start : address - start + size]
        raise AssertionError(f"{size} bytes at {address} are not allocated")

    def put(self, name: str, work: Callable[[], None]) -> None:
        """Put work on the stream, or into the recording that is being made."""
        self.calls.append(name)
        (self.queue if self.capturing is None else self.capturing).append(work)

    def clear(self, address: int, size: int, stream: int) -> None:
        assert stream == 7
        self.put("clear", lambda: self.view(address, size).fill(0))

    def to_device(self, address: int, source: NDArray[np.uint8], stream: int) -> None:
        assert stream == 7
        target = self.view(address, source.nbytes)
        self.put("to_device", lambda: np.copyto(target, source))

    def to_host(self, target: NDArray[np.uint8], address: int, stream: int) -> None:
        assert stream == 7
        source = self.view(address, target.nbytes)
        self.put("to_host", lambda: np.copyto(target, source))

    def synchronize(self, stream: int) -> None:
        assert stream == 7 and self.capturing is None
        self.calls.append("synchronize")
        while self.queue:
            self.queue.pop(0)()

    def capture(self, stream: int, work: Callable[[], None]) -> int:
        assert stream == 7 and self.capturing is None
        self.calls.append("capture")
        if self.refuse_capture:
            raise BackendError("cudaStreamEndCapture failed: cudaErrorStreamCaptureUnsupported")
        self.capturing = []
        try:
            work()
            self.recordings[len(self.recordings) + 1] = self.capturing
        finally:
            self.capturing = None
        return len(self.recordings)

    def replay(self, recording: int, stream: int) -> None:
        assert stream == 7
        self.calls.append("replay")
        self.queue += self.recordings[recording]

    def forget(self, recording: int) -> None:
        self.recordings[recording] = []


class _Strategy(Enum):
    USER_MANAGED = 1
    EAGER = 2
    LAZY = 3


class _Severity(Enum):
    ERROR = 1


class _Logger:
    def log(self, severity: Any, message: str) -> None:
        raise NotImplementedError

    def tell(self, problem: str) -> None:
        self.log(_Severity.ERROR, f"damaged:\n{problem}")


@dataclass
class FakeTensorRt:
    """The module `tensorrt_rtx`, as far as an engine uses it.

    Args:
        driver: the device.
        version: what `__version__` says.
        capturable: what contexts say of capturing.
    """

    driver: FakeDriver
    version: str = "1.7.1.116"
    capturable: bool = True
    contexts: list[FakeContext] = field(default_factory=list)
    ILogger = _Logger
    ExecutionContextAllocationStrategy = _Strategy
    DynamicShapesKernelSpecializationStrategy = _Strategy
    __name__ = "tensorrt_rtx"

    def __post_init__(self) -> None:
        self.__version__ = self.version

    def Runtime(self, logger: _Logger) -> Any:
        def deserialize(data: bytes) -> FakeEngine | None:
            try:
                return FakeEngine(self, data)
            except Exception as error:  # noqa: BLE001 (the real one returns nothing, too)
                _Logger.tell(logger, str(error))
                return None

        return SimpleNamespace(deserialize_cuda_engine=deserialize)


class FakeEngine:
    """An ONNX model that answers like an `ICudaEngine`."""

    def __init__(self, trt: FakeTensorRt, data: bytes) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        self.trt = trt
        self.session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        self.inputs = {each.name: each for each in self.session.get_inputs()}
        self.outputs = {each.name: each for each in self.session.get_outputs()}
        self.tensors = self.inputs | self.outputs
        self.num_io_tensors = len(self.tensors)

    def get_tensor_name(self, index: int) -> str:
        return str(list(self.tensors)[index])

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(name=_TYPES[self.tensors[name].type][1])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(s if isinstance(s, int) else -1 for s in self.tensors[name].shape)

    def create_runtime_config(self) -> Any:
        return SimpleNamespace(set_execution_context_allocation_strategy=lambda strategy: None)

    def get_device_memory_size_for_profile_v2(self, profile: int) -> int:
        return 1000 * (profile + 1)

    def create_execution_context(self, config: Any) -> FakeContext:
        context = FakeContext(self, config.dynamic_shapes_kernel_specialization_strategy.name)
        self.trt.contexts.append(context)
        return context


class FakeContext:
    """Runs its model on bound addresses, in place; knows what a real context forbids."""

    def __init__(self, engine: FakeEngine, strategy: str) -> None:
        self.engine, self.strategy = engine, strategy
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.profile: int | None = None
        self.unsettled = True

    def set_device_memory(self, address: int, size: int) -> None:
        self.engine.trt.driver.view(address, size)

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        assert stream == 7
        self.profile = profile
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name], self.unsettled = shape, True
        return name in self.engine.inputs

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name], self.unsettled = address, True
        return name in self.engine.tensors

    def is_stream_capturable(self, stream: int) -> bool:
        assert stream == 7
        return self.engine.trt.capturable

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == 7 and self.profile is not None
        driver = self.engine.trt.driver
        assert not (self.unsettled and driver.capturing is not None), "captured after new shapes"
        self.unsettled = False
        binding = self._bind()
        driver.put("execute", lambda: self.engine.session.run_with_iobinding(binding))
        return True

    def _bind(self) -> Any:
        engine, binding = self.engine, self.engine.session.io_binding()
        rows = self.shapes["tokens"][0]
        for name, tensor in engine.tensors.items():
            shape = self.shapes.get(name) or tuple(
                size if isinstance(size, int) else rows for size in tensor.shape
            )
            element, _, size = _TYPES[tensor.type]
            engine.trt.driver.view(self.addresses[name], int(np.prod(shape)) * size)
            bind = binding.bind_input if name in engine.inputs else binding.bind_output
            bind(name, "cpu", 0, element, shape, self.addresses[name])
        return binding
