"""Memory on a device, and the small arrays that travel between it and the host in one copy."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.runtime.engines.cuda import Driver

ITEM_SIZES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
_ALIGNMENT = 256


@dataclass(eq=False)
class DeviceBuffer:
    """A tensor on the device; its memory goes back to the pool with the last reference.

    Args:
        address: where it is.
        shape: all sizes.
        dtype: name as in the manifest.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


class MemoryPool:
    """Device memory that is asked of the driver once and used again.

    Args:
        driver: where the memory comes from.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._idle: defaultdict[int, list[int]] = defaultdict(list)

    def take(self, owner: object, size: int) -> int:
        """The address of `size` bytes that are `owner`'s for as long as it lives.

        Raises:
            MemoryError: the device has no more.
        """
        size = max(_ALIGNMENT, -(-size // _ALIGNMENT) * _ALIGNMENT)
        address = self._idle[size].pop() if self._idle[size] else self._allocate(size)
        weakref.finalize(owner, self._idle[size].append, address).atexit = False
        return address

    def buffer(self, shape: tuple[int, ...], dtype: str) -> DeviceBuffer:
        """A tensor whose content is whatever was there."""
        made = DeviceBuffer(0, shape, dtype)
        made.address = self.take(made, made.nbytes)
        return made

    def _allocate(self, size: int) -> int:
        try:
            return self._driver.allocate(size)
        except MemoryError:
            self.trim()
            return self._driver.allocate(size)

    def trim(self) -> None:
        """Give back what nobody uses."""
        for addresses in self._idle.values():
            while addresses:
                self._driver.free(addresses.pop())


class Shuttle:
    """Host arrays and their places on the device, side by side so that one copy moves them all.

    Args:
        driver: copies.
        pool: gives the device memory.
        arrays: by tensor name; C-contiguous.

    Attributes:
        addresses: where each array is on the device, by tensor name.
    """

    def __init__(self, driver: Driver, pool: MemoryPool, arrays: dict[str, NDArray[Any]]) -> None:
        self._driver = driver
        starts = _starts([array.nbytes for array in arrays.values()])
        self._size = starts.pop()
        self.addresses: dict[str, int] = {}
        self._pairs: list[tuple[NDArray[Any], NDArray[Any]]] = []
        if not self._size:
            return
        self._pinned = driver.pinned(self._size)
        self._base = pool.take(self, self._size)
        for (name, array), start in zip(arrays.items(), starts, strict=True):
            raw = self._pinned[start : start + array.nbytes]
            self._pairs.append((array, raw.view(array.dtype).reshape(array.shape)))
            self.addresses[name] = self._base + start

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to move."""
        return not self._pairs

    def read_arrays(self) -> None:
        """Take the arrays' content, for the next `to_device`."""
        for array, pinned in self._pairs:
            np.copyto(pinned, array)

    def write_arrays(self) -> None:
        """Give the arrays what the last `to_host` brought."""
        for array, pinned in self._pairs:
            np.copyto(array, pinned)

    def to_device(self, stream: int) -> None:
        """Copy all to the device."""
        if self._pairs:
            self._driver.to_device(self._base, self._pinned, stream)

    def to_host(self, stream: int) -> None:
        """Copy all from the device."""
        if self._pairs:
            self._driver.to_host(self._pinned, self._base, stream)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Aligned starts of parts of these sizes, and the end of the last."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return starts
