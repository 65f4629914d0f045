"""A tiny compact draft with random weights for a target on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from spec_compile.export.compact_draft import (
    CompactDraftConfig,
    weight_shapes,
    write_compact_draft,
)

WIDTH = 16
IDS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55)
SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": WIDTH,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 128,
    }
)


def save_compact_draft(folder: Path, target: Path, **overrides: Any) -> Path:
    """Write a compact draft of one layer, width WIDTH and head IDS for `target`."""
    embeddings = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    sizes = {**SIZES, **overrides}
    facts: dict[str, Any] = {
        "num_output_tokens": len(IDS),
        "target_hidden_size": embeddings.shape[1],
    }
    config = CompactDraftConfig(**sizes, **facts)
    generator = torch.Generator().manual_seed(3)
    weights = {
        name: 0.3 * torch.randn(shape, generator=generator) + (len(shape) == 1)
        for name, shape in weight_shapes(config).items()
    }
    weights["token_ids"] = torch.tensor(IDS, dtype=torch.int32)
    folder.mkdir()
    write_compact_draft(folder, sizes, weights, embeddings, tokens)
    return folder
