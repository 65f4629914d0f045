"""The draft while it is trained: layers of its own over the target's frozen embeddings."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from spec_compile.export.compact_draft import HEAD, PROJECTION, TOKEN_IDS, write_compact_draft

# Sizes of the shipped draft; heads are 64 wide, as the target's.
SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
)


class Draft(nn.Module):
    """Logits over `token_ids` from the target's embeddings.

    Args:
        embeddings: the target's [V, hidden], not trained.
        token_ids: [N] int64, ascending.
        sizes: as SIZES.
    """

    embeddings: Tensor
    token_ids: Tensor

    def __init__(self, embeddings: Tensor, token_ids: Tensor, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        self.sizes = sizes
        self.register_buffer("embeddings", embeddings, persistent=False)
        self.register_buffer("token_ids", token_ids, persistent=False)
        # One embedding, never read: the model takes vectors.
        self.model = LlamaModel(LlamaConfig(vocab_size=1, **sizes))
        width = sizes["hidden_size"]
        self.projection = nn.Linear(embeddings.shape[1], width, bias=False)
        self.head = nn.Linear(width, len(token_ids), bias=False)

    def forward(self, tokens: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        """Logits [L, N] behind places [L] of rows [L] of tokens [B, T] (padded on the right)."""
        logits: Tensor = self.head(self.states(tokens)[rows, places])
        return logits

    def states(self, tokens: Tensor) -> Tensor:
        """What the head reads [B, T, width] of tokens [B, T]."""
        vectors = self.projection(self.embeddings[tokens])
        hidden: Tensor = self.model(inputs_embeds=vectors, use_cache=False).last_hidden_state
        return hidden

    def save(self, folder: Path, tokenizer: Tokenizer, card: str = "") -> None:
        """Write it as a compact draft; replaces what is there."""
        layers = {
            f"model.{name}": weight
            for name, weight in self.model.state_dict().items()
            if not name.startswith("embed_tokens")
        }
        weights = layers | {PROJECTION: self.projection.weight, HEAD: self.head.weight}
        stored = {name: weight.detach().to(torch.float16) for name, weight in weights.items()}
        stored[TOKEN_IDS] = self.token_ids.to(torch.int32)
        tokens = {index: token for token, index in tokenizer.get_vocab().items()}
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        write_compact_draft(fresh, self.sizes, stored, self.embeddings, tokens)
        (fresh / "README.md").write_text(card, encoding="utf-8")
        for path in (fresh, *fresh.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)


def load_draft(folder: Path, embeddings: Tensor, sizes: Mapping[str, Any]) -> Draft:
    """The draft that `Draft.save` wrote into `folder`."""
    weights = load_file(folder / "model.safetensors")
    draft = Draft(embeddings, weights.pop(TOKEN_IDS).long(), sizes)
    named = {
        {PROJECTION: "projection.weight", HEAD: "head.weight"}.get(name, name): weight.float()
        for name, weight in weights.items()
    }
    unread = draft.model.embed_tokens.weight.detach()
    draft.load_state_dict({**named, "model.embed_tokens.weight": unread})
    return draft
