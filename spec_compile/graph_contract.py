"""Which tensors each graph of a bundle has: the contract between compiler and runtime, as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

GRAPHS_OF_FUSION: Mapping[str, tuple[str, ...]] = {
    "verify": ("draft", "verify", "target"),
    "step": ("step", "target"),
}
FREE_SIZES = ("B", "T", "N", "J", "J+1")
SOURCE_TOKENS, SOURCE_LENGTHS = "source_tokens", "source_lengths"
# What the encoder of a drafter without caches gives: its states.
DRAFT_MEMORY = "draft_memory"
_CROSS = re.compile(r"(draft_)?cross_(key|value)\.\d+")


def is_source_tensor(name: str) -> bool:
    """Whether a decoder's input says something of the source text: its length, or what an encoder
    made of it, the keys and values of one layer's cross-attention.
    """
    return name == SOURCE_LENGTHS or is_cross_tensor(name)


def is_cross_tensor(name: str) -> bool:
    """Whether a tensor is what an encoder gives: keys or values of one layer, or its states."""
    return name == DRAFT_MEMORY or _CROSS.fullmatch(name) is not None


# Graphs that read the source text, by the model that they belong to.
ENCODERS = {"target": "encoder", "draft": "draft_encoder"}


def required_graphs(fusion: str, drafter: str, *, seq2seq: bool = False) -> tuple[str, ...]:
    """Graphs that a bundle must have; prompt lookup has no draft."""
    names = (*(ENCODERS.values() if seq2seq else ()), *GRAPHS_OF_FUSION[fusion])
    without = () if drafter == "model" else ("draft", ENCODERS["draft"])
    return tuple(name for name in names if name not in without)


@dataclass(frozen=True)
class Expected:
    """What a tensor must be.

    Args:
        dtype: NumPy's name of the element type.
        shape: a number, a free size (`B` rows, `T` new tokens, `N` source tokens, `J` draft
            tokens), or None for any number.
    """

    dtype: str
    shape: tuple[int | str | None, ...]

    def fits(self, dtype: str, shape: tuple[int | str, ...]) -> bool:
        """Whether a tensor of `dtype` and `shape` is as expected."""
        return (
            dtype == self.dtype
            and len(shape) == len(self.shape)
            and all(
                isinstance(size, int) if wanted is None else size == wanted
                for size, wanted in zip(shape, self.shape, strict=True)
            )
        )

    def __str__(self) -> str:
        sizes = ", ".join("any number" if size is None else str(size) for size in self.shape)
        return f"dtype {self.dtype} and shape [{sizes}]"


def drafts_shape(num_drafts: int, num_speculative_tokens: int) -> tuple[int, ...]:
    """Sizes of `draft_tokens` behind the rows: [k], or [K, k] for several drafts."""
    return (num_speculative_tokens,) if num_drafts == 1 else (num_drafts, num_speculative_tokens)


def graph_inputs(
    name: str, drafts: tuple[int, ...], vocab_size: int, *, any_length: bool = False
) -> tuple[dict[str, Expected], dict[str, Expected]]:
    """Required and optional inputs of graph `name`, without its caches.

    Args:
        name: of the graph.
        drafts: see `drafts_shape`.
        vocab_size: V.
        any_length: whether the graph takes any number J of draft tokens up to k.
    """
    if name in ENCODERS.values():
        return {
            SOURCE_TOKENS: Expected("int64", ("B", "N")),
            SOURCE_LENGTHS: Expected("int64", ("B",)),
        }, {}
    required = {
        "tokens": Expected("int64", ("B", "T")),
        "num_new": Expected("int64", ("B",)),
        "lengths": Expected("int64", ("B",)),
    }
    optional = {
        "temperature": Expected("float32", ("B",)),
        "top_k": Expected("int64", ("B",)),
        "top_p": Expected("float32", ("B",)),
        "min_p": Expected("float32", ("B",)),
        "uniforms": Expected("float32", ("B", None)),
    }
    if name == "verify":
        required["draft_tokens"] = Expected("int64", ("B", *(("J",) if any_length else drafts)))
        optional["draft_probs"] = Expected("float32", ("B", *drafts, vocab_size))
    return required, optional


def graph_outputs(
    name: str, drafts: tuple[int, ...], vocab_size: int, *, any_length: bool = False
) -> dict[str, Expected]:
    """Outputs that graph `name` must have, without its caches; arguments as `graph_inputs`."""
    if name in ENCODERS.values():
        return {}
    if name == "draft":
        return {"draft_tokens": Expected("int64", ("B", *drafts))}
    emitted: int | str = 1 if name == "target" else drafts[-1] + 1
    if any_length:
        emitted = "J+1"
    outputs = {
        "output_tokens": Expected("int64", ("B", emitted)),
        "num_emitted": Expected("int64", ("B",)),
    }
    if name == "target":
        outputs["logits"] = Expected("float32", ("B", 1, vocab_size))
    return outputs
