"""Memory bandwidth by reading an array that no cache holds."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_BYTES = 10**9
_PASSES = 5


def read_bandwidth(num_threads: int) -> float:
    """Bytes a second that `num_threads` threads read, the best of a few passes.

    A dot product with itself reads every byte once; `numpy.sum` is bound by its additions.
    """
    array = np.ones(_BYTES // 4, dtype=np.float32)
    parts = np.array_split(array, num_threads)
    seconds = []
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(_PASSES):
            started = time.perf_counter()
            list(pool.map(np.dot, parts, parts))
            seconds.append(time.perf_counter() - started)
    return array.nbytes / min(seconds)
