"""Single graph calls on ONNX Runtime, bound as the runtime binds them, and timed side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from spec_compile.manifest import TensorSpec
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.batch import Batch
from spec_compile.runtime.engines.onnxruntime import session_options
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.rounds import Rounds

Arrays = dict[str, NDArray[Any]]
_WARM_UP = 5


class GraphCall:
    """A session whose inputs and outputs are arrays; `alias_of` outputs share their input's.

    Args:
        model: an ONNX file, or one's bytes.
        folder: where external weights lie, for bytes.
        num_threads: threads of one call; None is ONNX Runtime's choice.
    """

    def __init__(self, model: Path | bytes, folder: Path, num_threads: int | None) -> None:
        options = session_options(ort, num_threads)
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder)
        )
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def bind(self, arrays: Arrays, outputs: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        """A function that runs the graph once over `arrays` into `outputs`."""
        binding = self._session.io_binding()
        for tensor in self._session.get_inputs():
            array = arrays[tensor.name]
            binding.bind_input(tensor.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        held = (arrays, outputs)  # the binding knows addresses only

        def run(_held: object = held) -> None:
            self._session.run_with_iobinding(binding)

        return run


def zeros(tensors: Sequence[TensorSpec], tokens: int, num_draft_tokens: int = 0) -> Arrays:
    """An array for every tensor, for one row, its new tokens and its draft tokens."""
    sizes = {"B": 1, "T": tokens, "J": num_draft_tokens, "J+1": num_draft_tokens + 1}
    return {
        tensor.name: np.zeros(
            [sizes[size] if isinstance(size, str) else size for size in tensor.shape],
            tensor.dtype,
        )
        for tensor in tensors
    }


def verify_arrays(decoder: Decoder, context: Sequence[int], num_threads: int | None) -> Arrays:
    """Inputs of one verify call of a `verify` bundle, one row, in the middle of a generation.

    The caches hold `context` but its last token, which is the call's new token; the draft tokens
    and laws are the draft model's own after it, at temperature 1.

    Raises:
        SystemExit: a bundle of another fusion.
    """
    manifest = decoder.manifest
    if manifest.config.fusion != "verify":
        raise SystemExit(f"{decoder.bundle.folder}: needs a bundle of fusion verify")
    graph = manifest.graphs["verify"]
    options = GenerationOptions(temperature=1.0)
    batch = Batch([list(context)], options, [0], manifest.config.max_length)
    rounds = Rounds(decoder.engine, manifest, batch)
    rounds.run()
    arrays = zeros(graph.inputs, len(context), manifest.config.num_speculative_tokens)
    drafted = {name: rounds.buffers[name] for name in arrays if name.startswith("draft_")}
    arrays |= drafted | {name: array for name, array in batch.sampling.items() if name in arrays}
    if "uniforms" in arrays:
        arrays["uniforms"] = np.random.default_rng(0).random(
            arrays["uniforms"].shape, dtype=np.float32
        )
    arrays["tokens"][0], arrays["num_new"][0] = context, len(context)
    path = decoder.bundle.path(graph.file)
    GraphCall(path, path.parent, num_threads).bind(arrays, verify_outputs(decoder, arrays))()
    now = {
        "tokens": np.array([[context[-1]]], dtype=np.int64),
        "num_new": np.array([1], dtype=np.int64),
        "lengths": np.array([len(context) - 1], dtype=np.int64),
    }
    return arrays | now


def verify_outputs(decoder: Decoder, arrays: Arrays) -> Arrays:
    """Arrays of the verify graph's outputs, the caches in place."""
    graph = decoder.manifest.graphs["verify"]
    num_draft_tokens = decoder.manifest.config.num_speculative_tokens
    own = [tensor for tensor in graph.outputs if tensor.alias_of is None]
    fresh = zeros(own, 1, num_draft_tokens)
    aliases = {t.name: arrays[t.alias_of] for t in graph.outputs if t.alias_of is not None}
    return fresh | aliases


def time_side_by_side(
    calls: Mapping[str, Callable[[], None]], repeat: int
) -> dict[str, list[float]]:
    """Milliseconds of each call, `repeat` rounds of one after the other, the first few dropped."""
    milliseconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(_WARM_UP + repeat):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            started = time.perf_counter()
            calls[name]()
            if number >= _WARM_UP:
                milliseconds[name].append(1000.0 * (time.perf_counter() - started))
    return milliseconds
