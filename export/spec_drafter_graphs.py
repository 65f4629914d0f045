"""A Spec-Drafter as the graphs of a round: what its encoder gives, and k tokens in one pass.

Its decoder has no cache: every call reads all committed tokens of a row.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from spec_compile.export.spec_drafter import SpecDrafter, sinusoids
from spec_compile.export.spec_drafter_files import MODEL_TYPE
from spec_compile.graph_contract import DRAFT_MEMORY, ENCODERS, SOURCE_LENGTHS, SOURCE_TOKENS
from spec_compile.program import Composite, Graph, TensorSpec, trace


class SpecDrafterConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """A drafter's sizes, under the names that the front end asks a configuration for."""

    model_type = MODEL_TYPE
    attribute_map = {"num_hidden_layers": "decoder_layers", "max_position_embeddings": "max_length"}  # noqa: RUF012


AutoConfig.register(MODEL_TYPE, SpecDrafterConfig)


def capture_spec_drafter(
    drafter: SpecDrafter,
    *,
    num_speculative_tokens: int,
    vocab_size: int,
    batch_size: int,
    max_length: int,
) -> dict[str, Graph]:
    """The graphs `draft_encoder` and `draft` of a drafter for rows of `max_length` tokens.

    `draft` takes `tokens` [B, T], all committed ones, `num_new` [B] and `lengths` [B], which is 0.
    """
    # Its positions go on behind the longest text that it was trained for: the last block does.
    places = max(drafter.sizes.max_length, max_length + num_speculative_tokens)
    table = sinusoids(places, drafter.sizes.hidden_size)
    drafter.positions = table.to(drafter.shared.weight.dtype)
    sizes = {"batch_size": batch_size, "max_length": max_length}
    return {
        ENCODERS["draft"]: trace(_Encoder(drafter), **sizes),
        "draft": trace(_Proposals(drafter, num_speculative_tokens, vocab_size), **sizes),
    }


class _Encoder(Composite):
    inputs = (
        TensorSpec(SOURCE_TOKENS, torch.int64, ("B", "N")),
        TensorSpec(SOURCE_LENGTHS, torch.int64, ("B",)),
    )

    def __init__(self, drafter: SpecDrafter) -> None:
        super().__init__()
        self.model = drafter

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its states."""
        return {DRAFT_MEMORY: self.model.encode(tensors[SOURCE_TOKENS], tensors[SOURCE_LENGTHS])}


class _Proposals(Composite):
    def __init__(self, drafter: SpecDrafter, num_speculative_tokens: int, vocab_size: int) -> None:
        super().__init__()
        self.model, self.num_tokens = drafter, num_speculative_tokens
        self.vocab_size = vocab_size
        width = drafter.sizes.hidden_size
        self.inputs = (
            TensorSpec("tokens", torch.int64, ("B", "T")),
            TensorSpec("num_new", torch.int64, ("B",)),
            TensorSpec("lengths", torch.int64, ("B",)),
            TensorSpec(SOURCE_LENGTHS, torch.int64, ("B",)),
            TensorSpec(DRAFT_MEMORY, drafter.shared.weight.dtype, ("B", "N", width)),
        )

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The best token of each position."""
        logits = self.model.propose(
            tensors[DRAFT_MEMORY],
            tensors[SOURCE_LENGTHS],
            tensors["tokens"].clamp(max=self.model.sizes.vocab_size - 1),
            tensors["num_new"],
            self.num_tokens,
        )
        return {"draft_tokens": logits[..., : self.vocab_size].argmax(dim=-1)}
