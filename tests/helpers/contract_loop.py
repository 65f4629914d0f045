"""The host's side of a bundle in a page of NumPy, written from the graph contract alone.

An oracle for the runtime, and the driver of tests that need many rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from spec_compile.manifest import MANIFEST_FILE, Manifest

Array = NDArray[Any]


class ContractLoop:
    """Rounds over the rows of a bundle; caches are passed in and out, not bound."""

    def __init__(self, folder: Path, num_threads: int = 2) -> None:
        text = (folder / MANIFEST_FILE).read_text(encoding="utf-8")
        self.manifest = Manifest.from_json(text)
        self.k = self.manifest.config.num_speculative_tokens
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = num_threads, 3
        self.sessions = {
            name: ort.InferenceSession(
                folder / graph.file, options, providers=["CPUExecutionProvider"]
            )
            for name, graph in self.manifest.graphs.items()
        }

    def start(self, prompts: Sequence[Sequence[int]], **sampling: Any) -> None:
        """New rows; sampling options are numbers or one number a row."""
        rows = len(prompts)
        self.committed = [list(prompt) for prompt in prompts]
        self.caches = {
            tensor.name: np.zeros([rows, *map(int, tensor.shape[1:])], dtype=tensor.dtype)
            for graph in self.manifest.graphs.values()
            for tensor in graph.caches
        }
        neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | sampling
        self.sampling = {
            name: np.broadcast_to(
                np.asarray(value, np.int64 if name == "top_k" else np.float32), rows
            ).copy()
            for name, value in neutral.items()
        }
        self.first = True

    def round(self, rng: np.random.Generator, *, biased: bool = False) -> NDArray[np.int64]:
        """Run one round and commit what it emits; the number of tokens of each row.

        `biased` draws the draft and tests it with the same numbers, a classic way to be wrong.
        """
        names = [name for name in self.sessions if name != "target"]
        widths = [self._num_uniforms(name) for name in names]
        uniforms = rng.random((len(self.committed), sum(widths)), dtype=np.float32)
        if biased:
            uniforms[:, self.k : 2 * self.k] = uniforms[:, : self.k]
        shared: dict[str, Array] = {}
        for name, part in zip(
            names, np.split(uniforms, np.cumsum(widths)[:-1], axis=1), strict=True
        ):
            shared |= self._call(name, {**shared, "uniforms": np.ascontiguousarray(part)})
        self.first = False
        for row, count in enumerate(shared["num_emitted"].tolist()):
            self.committed[row] += shared["output_tokens"][row, :count].tolist()
        counts: NDArray[np.int64] = shared["num_emitted"]
        return counts

    def next_logits(self) -> NDArray[np.float32]:
        """Logits [B, V] after the committed tokens, from the target's caches as they stand."""
        zeros = np.zeros((len(self.committed), self._num_uniforms("target")), np.float32)
        outputs = self._call("target", {"uniforms": zeros})
        logits: NDArray[np.float32] = outputs["logits"][:, 0]
        return logits

    def _call(self, name: str, tensors: dict[str, Array]) -> dict[str, Array]:
        graph = self.manifest.graphs[name]
        known = {**self.sampling, **self.caches, **tensors, **self._feed(name)}
        feeds = {tensor.name: known[tensor.name] for tensor in graph.inputs}
        names = [tensor.name for tensor in graph.outputs]
        outputs = dict(zip(names, self.sessions[name].run(names, feeds), strict=True))
        for tensor in graph.outputs:
            if tensor.alias_of:
                self.caches[tensor.alias_of] = outputs[tensor.name]
        return outputs

    def _feed(self, name: str) -> dict[str, Array]:
        """The prompts in the first call, then the last two tokens (draft, step) or one."""
        lengths = np.array([len(tokens) for tokens in self.committed])
        width = 2 if name in ("draft", "step") else 1
        if self.first:
            width = int(lengths.max())
            tokens = np.zeros((len(lengths), width), np.int64)
            for row, prompt in enumerate(self.committed):
                tokens[row, : len(prompt)] = prompt
            return {"tokens": tokens, "num_new": lengths, "lengths": lengths * 0}
        return {
            "tokens": np.array([tokens[-width:] for tokens in self.committed]),
            "num_new": lengths * 0 + width,
            "lengths": lengths - width,
        }

    def _num_uniforms(self, name: str) -> int:
        tensor = self.manifest.graphs[name].input("uniforms")
        return int(tensor.shape[1]) if tensor is not None else 0
