"""Runs in a process of its own, where nothing but the runtime is: prints one JSON object.

python benchmarks/figures/probe.py memory BUNDLE THREADS
python benchmarks/figures/probe.py in-place BUNDLE THREADS       (ONNX Runtime warns on stderr)
python benchmarks/figures/probe.py not-in-place BUNDLE THREADS
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import tokenizers

from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.engines.onnxruntime import OnnxRuntimeEngine
from spec_compile.runtime.loader import open_bundle

_NEW_TOKENS = 64
_WARNINGS = 2
_PROMPT = list(range(1, 65))


def memory(folder: str, num_threads: int) -> dict[str, Any]:
    """Peak resident memory of a generation of 64 tokens, and what loading took."""
    imported = peak_bytes()
    started = time.perf_counter()
    decoder = load(folder, num_threads=num_threads)
    loaded = time.perf_counter()
    decoder.generate(_PROMPT, max_new_tokens=1)
    first = time.perf_counter()
    decoder.generate(_PROMPT, max_new_tokens=1)
    second = time.perf_counter()
    decoder.generate(_PROMPT, max_new_tokens=_NEW_TOKENS, ignore_eos=True)
    return {
        "imported_bytes": imported,
        "peak_bytes": peak_bytes(),
        "load_seconds": loaded - started,
        "open_seconds": (first - loaded) - (second - first),
        "packages": {"onnxruntime": ort.__version__, "tokenizers": tokenizers.__version__},
    }


def in_place(folder: str, num_threads: int) -> dict[str, Any]:
    """Generations of one and of two rows with the engine's warnings on, bound as the runtime does.

    The operator that one row runs on never warns: that it copies nothing shows in its time, which
    does not grow with the capacity.
    """
    bundle = open_bundle(folder, verify_hash=False)
    engine = OnnxRuntimeEngine(bundle, num_threads=num_threads, log_severity=_WARNINGS)
    decoder = Decoder(bundle, engine, None)
    calls = 0
    for rows in (1, 2):
        results = decoder.generate([_PROMPT] * rows, max_new_tokens=_NEW_TOKENS, ignore_eos=True)
        calls += max(result.stats.num_rounds for result in results)
    return {"calls": calls}


def not_in_place(folder: str, num_threads: int) -> dict[str, Any]:
    """The control: one call of the target graph whose caches come out in other memory.

    Two rows of two tokens: the form that warns.
    """
    bundle = open_bundle(folder, verify_hash=False)
    options, run_options = ort.SessionOptions(), ort.RunOptions()
    options.log_severity_level = run_options.log_severity_level = _WARNINGS
    options.intra_op_num_threads = num_threads
    path = bundle.path(bundle.manifest.graphs["target"].file)
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = {}
    for tensor in bundle.manifest.graphs["target"].inputs:
        shape = [2 if isinstance(size, str) else size for size in tensor.shape]
        feeds[tensor.name] = np.ones(shape, tensor.dtype)
    feeds["lengths"][:] = 0
    session.run(None, feeds, run_options)
    return {"calls": 1}


def peak_bytes() -> int:
    """Most resident memory that this program has had."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Unlike getrusage, this leaves out the process that started this program.
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


PROBES = {"memory": memory, "in-place": in_place, "not-in-place": not_in_place}


if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
