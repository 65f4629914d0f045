"""The two architectures: a small Llama and a one-layer Llama that drafts for it."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from examples.demo_pair.vocabulary import END_OF_TEXT_ID, VOCAB_SIZE

MAX_POSITIONS = 1024
HEAD_DIM = 32


def target_config() -> LlamaConfig:
    """Six layers of width 192, six query heads over two key/value heads: 2.5 M parameters."""
    return _config(hidden=192, intermediate=432, layers=6, heads=6, kv_heads=2)


def draft_config() -> LlamaConfig:
    """One layer of width 128: a call of it costs few operators, which is what a draft is for."""
    return _config(hidden=128, intermediate=256, layers=1, heads=4, kv_heads=2)


def new_model(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """A freshly initialised model; the seed decides every weight."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def load_model(folder: Path) -> LlamaForCausalLM:
    """A stored model in float32, ready to measure or to distil from."""
    model = LlamaForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, local_files_only=True, use_safetensors=True
    )
    assert isinstance(model, LlamaForCausalLM)
    model.train(False)
    return model


def num_parameters(model: torch.nn.Module) -> int:
    """Parameters, the tied embedding counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _config(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=None,
    )
