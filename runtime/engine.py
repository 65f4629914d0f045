"""What the decoder asks of an engine, and the table of engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from spec_compile.errors import BackendError, ConfigError, NativeCodeError

if TYPE_CHECKING:
    from spec_compile.runtime.loader import Bundle

Run = Callable[[], None]


class Engine(Protocol):
    """Runs the graphs of one bundle; one engine serves any number of generations."""

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Zeroed memory where the engine computes: caches, and what passes from graph to graph.

        Args:
            shape: sizes of all dimensions.
            dtype: name as in the manifest.
        """

    def bind(self, graph: str, buffers: Mapping[str, Any]) -> Run:
        """Tie buffers to a graph's tensors for as long as the returned function lives.

        Args:
            graph: name in the manifest; loaded on first use.
            buffers: a C-contiguous NumPy array or a `zeros` buffer for every input, and for the
                wanted outputs. A cache is given under its input's name and updated in place.

        Returns:
            A function that runs the graph once, reading and writing the buffers.

        Raises:
            ArtifactError: the graph's file is damaged or disagrees with the manifest.
            BackendError: the engine cannot load the graph; the returned function raises it when
                the engine fails in a run.
        """


NATIVE_CODE_VARIABLE = "SPEC_COMPILE_ALLOW_NATIVE_CODE"


DEVICES = ("cpu", "cuda", "tensorrt", "tensorrt-rtx")
"""Where ONNX Runtime may run a bundle's graphs."""


def open_engine(
    bundle: Bundle,
    *,
    num_threads: int | None = None,
    allow_native_code: bool | None = None,
    device: str = "cpu",
    cuda_graph: bool = False,
) -> Engine:
    """The engine that `bundle` was exported for.

    Args:
        bundle: an opened bundle.
        num_threads: threads of one graph call; None leaves the choice to the engine. An engine on
            a device has no use for it.
        allow_native_code: run bundles that hold machine code for this process; None asks the
            environment variable SPEC_COMPILE_ALLOW_NATIVE_CODE.
        device: one of DEVICES, for bundles of the backend `onnxruntime`; others were built for one.
        cuda_graph: record rounds on a device once and replay them.

    Raises:
        BackendError: no such engine, or its package is not installed, or lacks the device.
        ConfigError: no such device, or not for this bundle.
        NativeCodeError: the bundle holds machine code, and it is not allowed.
    """
    backend = bundle.manifest.config.backend
    _check_device(backend, device, cuda_graph)
    if backend == "onnxruntime" and device != "cpu":
        from spec_compile.runtime.engines.onnxruntime_device import OnnxRuntimeDeviceEngine

        return OnnxRuntimeDeviceEngine(bundle, device, cuda_graph=cuda_graph)
    if backend == "onnxruntime":
        from spec_compile.runtime.engines.onnxruntime import OnnxRuntimeEngine

        return OnnxRuntimeEngine(bundle, num_threads=num_threads)
    if backend in ("tensorrt", "tensorrt-rtx"):
        from spec_compile.runtime.engines.tensorrt import TensorRtEngine

        return TensorRtEngine(bundle)
    if backend == "torch":
        _require_native_code(bundle, allow_native_code)
        from spec_compile.runtime.engines.torch_inductor import TorchEngine

        return TorchEngine(bundle, num_threads=num_threads)
    raise BackendError(
        f"the bundle was exported for {backend!r}, which this spec-compile does not run; "
        "upgrade it, or export with --backend onnxruntime"
    )


def _check_device(backend: str, device: str, cuda_graph: bool) -> None:
    if device not in DEVICES:
        raise ConfigError(f"device={device!r} is not supported; choose one of {', '.join(DEVICES)}")
    if device != "cpu" and backend != "onnxruntime":
        raise ConfigError(
            f"device={device!r} is for bundles of the backend onnxruntime; this one was built for "
            f"{backend}, which says itself where it runs"
        )
    if cuda_graph and device == "cpu":
        raise ConfigError("cuda_graph=True needs a device other than cpu")


def _require_native_code(bundle: Bundle, allowed: bool | None) -> None:
    """Graphs and weights are data; a bundle of this backend is a program with all our rights."""
    if allowed is None:
        allowed = os.environ.get(NATIVE_CODE_VARIABLE, "") == "1"
    if not allowed:
        raise NativeCodeError(
            f"{bundle.folder} holds machine code, which can do whatever this process may do; if "
            f"you trust its origin, load it with allow_native_code=True, or set "
            f"{NATIVE_CODE_VARIABLE}=1"
        )
