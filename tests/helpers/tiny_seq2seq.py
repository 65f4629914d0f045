"""Tiny random encoder-decoder checkpoints, and what transformers says to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.utils import logging

from tests.helpers.tiny_models import VOCAB_SIZE, write_tokenizer

SEQ2SEQ_KINDS = ("t5", "bart", "marian")
MAX_POSITIONS = 64

_SIZES = {"vocab_size": VOCAB_SIZE, "d_model": 32, "eos_token_id": 0, "bos_token_id": None}
_BART = {
    **_SIZES,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": MAX_POSITIONS,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "t5": {
            **_SIZES,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 1,
            "num_decoder_layers": 2,
            "num_heads": 4,
            # Few and near, so that every kind of bucket is in reach of a short text.
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 16,
            "pad_token_id": 1,
            "decoder_start_token_id": 1,
        },
        "bart": _BART,
        "marian": _BART,
    }
)


def tiny_seq2seq(kind: str, *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A float32 model with random weights, in evaluation mode.

    Args:
        kind: one of SEQ2SEQ_KINDS, or another `model_type` with BART's field names.
        seed: of the weights.
        **overrides: fields of the configuration.
    """
    config = AutoConfig.for_model(kind, **{**_CONFIGS.get(kind, _BART), **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForSeq2SeqLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.float32
        )
        for weight in model.parameters():
            if weight.requires_grad:  # sinusoids are no weights
                noise = torch.randn_like(weight) * 0.3
                weight.data = noise if weight.dim() > 1 else weight.data + noise
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.normal_(std=0.3)
    model.train(False)
    return model


def save_tiny_seq2seq(
    folder: Path, kind: str, *, seed: int = 0, tokenizer: bool = False, **overrides: Any
) -> Path:
    """Save `tiny_seq2seq(kind, seed=seed, **overrides)` to `folder`, with a tokenizer if asked."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tiny_seq2seq(kind, seed=seed, **overrides).save_pretrained(folder)
    logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    if tokenizer:
        write_tokenizer(folder)
    return folder


def eager_seq2seq_logits(
    model: PreTrainedModel, source: Sequence[int] | Tensor, tokens: Sequence[int] | Tensor
) -> Tensor:
    """Logits [T, V] of transformers' own forward over one source and one row of tokens."""
    with torch.no_grad():
        output = model(
            input_ids=torch.as_tensor(source)[None],
            decoder_input_ids=torch.as_tensor(tokens)[None],
            use_cache=False,
        )
    logits: Tensor = output.logits[0]
    return logits
