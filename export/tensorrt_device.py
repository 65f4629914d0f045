"""Which NVIDIA device this machine has, asked of the driver without any package."""

from __future__ import annotations

import ctypes
import sys

from spec_compile.errors import BackendError

_MAJOR, _MINOR = 75, 76  # CUdevice_attribute: compute capability
_ADVICE = "TensorRT builds for the device that it finds; use --backend tensorrt-rtx without one"


def device_capability(library: str | None = None) -> str:
    """The compute capability of the first device, as "8.9".

    Args:
        library: the driver's library; None takes the system's.

    Raises:
        BackendError: no driver, or no device.
    """
    name = library or ("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    try:
        driver = ctypes.CDLL(name)
    except OSError as error:
        raise BackendError(f"no NVIDIA driver here ({name}); {_ADVICE}") from error
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    )
    if failed:
        raise BackendError(f"no usable NVIDIA device here (driver error {failed}); {_ADVICE}")
    return f"{major.value}.{minor.value}"
