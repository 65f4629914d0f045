"""The few calls into the CUDA runtime that an engine needs, behind a protocol.

Nothing here computes: what decides on addresses, sizes and order lives in the engines, so that it
can be tested on machines without a device.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from spec_compile.errors import BackendError

_INSTALL = "pip install 'spec-compile[tensorrt-rtx]'"


class Driver(Protocol):
    """One device and its memory; addresses and handles are numbers.

    Work is put on a stream and done in order, later: host memory that it reads or writes must stay
    as it is until `synchronize`. Every method raises BackendError when the driver refuses.
    """

    def compute_capability(self) -> str:
        """Of the device, as "8.9"."""

    def allocate(self, size: int) -> int:
        """Device memory of `size` bytes.

        Raises:
            MemoryError: the device has no more.
        """

    def free(self, address: int) -> None:
        """Give device memory back."""

    def pinned(self, size: int) -> NDArray[np.uint8]:
        """Host memory of `size` bytes that the device copies from and to; freed with the array."""

    def new_stream(self) -> int:
        """An empty stream."""

    def clear(self, address: int, size: int, stream: int) -> None:
        """Fill device memory with zeros."""

    def to_device(self, address: int, source: NDArray[np.uint8], stream: int) -> None:
        """Copy pinned memory to the device."""

    def to_host(self, target: NDArray[np.uint8], address: int, stream: int) -> None:
        """Copy from the device to pinned memory."""

    def synchronize(self, stream: int) -> None:
        """Wait until everything on the stream is done."""

    def capture(self, stream: int, work: Callable[[], None]) -> int:
        """Record what `work` puts on the stream, without doing it, for `replay`."""

    def replay(self, recording: int, stream: int) -> None:
        """Put recorded work on the stream."""

    def forget(self, recording: int) -> None:
        """Give a recording's memory back."""


class CudaDriver:
    """`Driver` on the package cuda-bindings (device 0).

    Raises:
        BackendError: no package, no driver or no device.
    """

    def __init__(self) -> None:
        try:
            self._cuda: Any = import_module("cuda.bindings.runtime")
        except ImportError as error:
            raise BackendError(f"cuda-bindings is not installed; run: {_INSTALL}") from error
        try:
            count = self._ask("cudaGetDeviceCount")
        except (BackendError, RuntimeError) as error:
            raise BackendError(
                f"no usable NVIDIA driver or device here ({_one_line(error)}); this bundle runs on "
                "one, export with --backend onnxruntime to run on the CPU"
            ) from error
        if count == 0:
            raise BackendError(
                "no NVIDIA device here; this bundle runs on one, export with --backend "
                "onnxruntime to run on the CPU"
            )
        self._ask("cudaSetDevice", 0)

    def compute_capability(self) -> str:
        """See `Driver`."""
        attributes = self._cuda.cudaDeviceAttr
        major = self._ask("cudaDeviceGetAttribute", attributes.cudaDevAttrComputeCapabilityMajor, 0)
        minor = self._ask("cudaDeviceGetAttribute", attributes.cudaDevAttrComputeCapabilityMinor, 0)
        return f"{major}.{minor}"

    def allocate(self, size: int) -> int:
        """See `Driver`."""
        status, address = self._cuda.cudaMalloc(size)
        if status == self._cuda.cudaError_t.cudaErrorMemoryAllocation:
            raise MemoryError(f"{size} bytes on the device")
        self._check("cudaMalloc", status)
        return int(address)

    def free(self, address: int) -> None:
        """See `Driver`."""
        self._ask("cudaFree", address)

    def pinned(self, size: int) -> NDArray[np.uint8]:
        """See `Driver`; the memory is the array's own, locked into RAM while it lives."""
        memory = _Locked(size)
        self._ask("cudaHostRegister", memory.ctypes.data, size, 0)
        memory.unlock = lambda address: self._cuda.cudaHostUnregister(address)
        return memory

    def new_stream(self) -> int:
        """See `Driver`."""
        return int(self._ask("cudaStreamCreateWithFlags", self._cuda.cudaStreamNonBlocking))

    def clear(self, address: int, size: int, stream: int) -> None:
        """See `Driver`."""
        self._ask("cudaMemsetAsync", address, 0, size, stream)

    def to_device(self, address: int, source: NDArray[np.uint8], stream: int) -> None:
        """See `Driver`."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._ask("cudaMemcpyAsync", address, source.ctypes.data, source.nbytes, kind, stream)

    def to_host(self, target: NDArray[np.uint8], address: int, stream: int) -> None:
        """See `Driver`."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._ask("cudaMemcpyAsync", target.ctypes.data, address, target.nbytes, kind, stream)

    def synchronize(self, stream: int) -> None:
        """See `Driver`."""
        self._ask("cudaStreamSynchronize", stream)

    def capture(self, stream: int, work: Callable[[], None]) -> int:
        """See `Driver`."""
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._ask("cudaStreamBeginCapture", stream, mode)
        try:
            work()
        except BaseException:
            self._cuda.cudaStreamEndCapture(stream)  # the stream is usable again
            raise
        graph = self._ask("cudaStreamEndCapture", stream)
        try:
            return int(self._ask("cudaGraphInstantiate", graph, 0))
        finally:
            self._ask("cudaGraphDestroy", graph)

    def replay(self, recording: int, stream: int) -> None:
        """See `Driver`."""
        self._ask("cudaGraphLaunch", recording, stream)

    def forget(self, recording: int) -> None:
        """See `Driver`."""
        self._ask("cudaGraphExecDestroy", recording)

    def _ask(self, function: str, *arguments: Any) -> Any:
        status, *values = getattr(self._cuda, function)(*arguments)
        self._check(function, status)
        return values[0] if values else None

    def _check(self, function: str, status: Any) -> None:
        if status != self._cuda.cudaError_t.cudaSuccess:
            raise BackendError(f"{function} failed: {status.name}")


class _Locked(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Bytes that are unlocked when the array dies; views keep it alive."""

    unlock: Callable[[int], object] | None = None

    def __new__(cls, size: int) -> _Locked:
        return super().__new__(cls, (size,), dtype=np.uint8)

    def __del__(self) -> None:
        if self.unlock is not None:
            self.unlock(self.ctypes.data)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
