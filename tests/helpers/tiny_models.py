"""Tiny random Hugging Face checkpoints of real architectures, saved as a user would have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

VOCAB_SIZE = 64
EOS = "<|end|>"
KINDS = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "gpt2")

_SPECIALS = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
_LLAMA_LIKE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    **_SPECIALS,
}
_GPT2 = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
_CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "qwen3": {**_LLAMA_LIKE, "head_dim": 8},
        "gemma2": {**_LLAMA_LIKE, "head_dim": 8, "query_pre_attn_scalar": 8},
        "gemma3_text": {**_LLAMA_LIKE, "head_dim": 8, "query_pre_attn_scalar": 8},
        "gpt2": {**_GPT2, **_SPECIALS},
    }
)


def tiny_model(kind: str, *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A float32 model with random weights, in evaluation mode.

    Args:
        kind: a `model_type` of transformers; those not in KINDS get Llama's field names.
        seed: of the weights.
        **overrides: fields of the configuration.
    """
    fields = {**_CONFIGS.get(kind, _LLAMA_LIKE), **overrides}
    config = AutoConfig.for_model(kind, **fields)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.float32
        )
        for weight in model.parameters():
            # Wider than any initialiser, biases included: what is wrong shows in the logits.
            noise = torch.randn_like(weight) * 0.3
            weight.data = noise if weight.dim() > 1 else weight.data + noise
    model.train(False)
    return model


def save_tiny_model(
    folder: Path, kind: str = "llama", *, seed: int = 0, tokenizer: bool = False, **overrides: Any
) -> Path:
    """Save `tiny_model(kind, seed=seed, **overrides)` to `folder`.

    Args:
        folder: made if missing.
        kind: as for `tiny_model`.
        seed: of the weights.
        tokenizer: write a byte-level tokenizer too; it knows all ids below VOCAB_SIZE - 4.
        **overrides: fields of the configuration.

    Returns:
        The folder.
    """
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tiny_model(kind, seed=seed, **overrides).save_pretrained(folder)
    logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    if tokenizer:
        write_tokenizer(folder)
    return folder


def tokens() -> list[str]:
    """The vocabulary of `write_tokenizer`, by id: the end of a text, then single characters."""
    characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:;()"
    return [EOS, *characters[: VOCAB_SIZE - 6], "\u0120"]


def write_tokenizer(folder: Path, vocabulary: list[str] | None = None) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` of a byte-level tokenizer without merges.

    Args:
        folder: where to.
        vocabulary: tokens by id; None takes `tokens()`. The first one ends a text.
    """
    chosen = tokens() if vocabulary is None else vocabulary
    tokenizer = Tokenizer(BPE({token: index for index, token in enumerate(chosen)}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([chosen[0]])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": chosen[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
