"""A bundle's target read over a given text: how likely each token is, and which one is likeliest.

The text is `pydoc_data.topics`, Python's language reference as plain text (PSF licence 2.0), which
every Python brings along. Windows of it are fed one token a call, many windows side by side,
through the `target` graph, which is what decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures.graph_calls import Arrays, GraphCall
from spec_compile.runtime.api import Decoder

WINDOW = 256


@dataclass(frozen=True)
class Reading:
    """What a target says of a text, by token.

    Args:
        losses: minus the logarithm of the probability of each token but the first of its window.
        likeliest: the id of the largest logit in the same places.
    """

    losses: NDArray[np.float64]
    likeliest: NDArray[np.int64]

    @property
    def perplexity(self) -> float:
        """The exponential of the mean loss."""
        return float(np.exp(self.losses.mean()))

    def agreement(self, other: Reading) -> float:
        """How often both find the same token likeliest."""
        return float((self.likeliest == other.likeliest).mean())


def windows(decoder: Decoder, num_tokens: int) -> NDArray[np.int64]:
    """[N, WINDOW] ids of at least `num_tokens` tokens, spread over the text.

    Raises:
        SystemExit: the bundle has no tokenizer, or the text is shorter.
    """
    if decoder.tokenizer is None:
        raise SystemExit(f"{decoder.bundle.folder}: needs a tokenizer")
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = decoder.tokenizer.encode(text)
    count = -(-num_tokens // WINDOW)
    whole = len(ids) // WINDOW
    if whole < count:
        raise SystemExit(f"the text has {whole * WINDOW} tokens only")
    rows = np.array(ids[: whole * WINDOW], dtype=np.int64).reshape(whole, WINDOW)
    spread: NDArray[np.int64] = rows[np.linspace(0, whole - 1, count).astype(int)]
    return spread


def read(decoder: Decoder, ids: NDArray[np.int64], rows: int, num_threads: int | None) -> Reading:
    """Feed the windows `ids` [N, WINDOW] to the target graph, `rows` side by side."""
    graph = decoder.manifest.graphs["target"]
    path = decoder.bundle.path(graph.file)
    call = GraphCall(path, path.parent, num_threads)
    parts = [_read_side_by_side(decoder, call, ids[i : i + rows]) for i in range(0, len(ids), rows)]
    return Reading(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _read_side_by_side(
    decoder: Decoder, call: GraphCall, ids: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[Any]]:
    graph = decoder.manifest.graphs["target"]
    arrays = _zeros(graph.inputs, len(ids))
    outputs = _zeros([t for t in graph.outputs if t.alias_of is None], len(ids))
    logits = outputs["logits"][:, 0]
    aliases = {t.name: arrays[t.alias_of] for t in graph.outputs if t.alias_of is not None}
    arrays["num_new"][:] = 1
    run = call.bind(arrays, outputs | aliases)
    losses, likeliest = [], []
    for position in range(ids.shape[1] - 1):
        arrays["tokens"][:, 0], arrays["lengths"][:] = ids[:, position], position
        run()
        shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
        given = np.take_along_axis(shifted, ids[:, position + 1, None], axis=-1)[:, 0]
        losses.append(np.log(np.exp(shifted).sum(axis=-1)) - given)
        likeliest.append(logits.argmax(axis=-1))
    return np.stack(losses, axis=1), np.stack(likeliest, axis=1)


def _zeros(tensors: Sequence[Any], rows: int) -> Arrays:
    sizes = {"B": rows, "T": 1}
    return {
        tensor.name: np.zeros([sizes.get(size, size) for size in tensor.shape], tensor.dtype)
        for tensor in tensors
    }
