"""The target as a teacher: many rows at once, each at a position of its own, and its top laws.

Written out instead of calling `transformers` because its caches are copied or padded at every token
of a batch; the weights are those of the checkpoint, and a test compares the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

LAW_SIZE = 64


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, products of one input side by side."""

    first_norm: Tensor
    qkv: Tensor
    output: Tensor
    second_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Teacher:
    """A Llama model over cache slots [rows, slots]; every row has its own length.

    Args:
        folder: checkpoint of a `LlamaForCausalLM`.
        rows: how many texts are decoded together.
        slots: tokens that each of them may hold.
        dtype: of weights, activations and caches.
    """

    def __init__(self, folder: Path, rows: int, slots: int, dtype: torch.dtype) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        config = self.config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = config.head_dim
        self.epsilon = config.rms_norm_eps
        self.embeddings = model.model.embed_tokens.weight.detach()
        self.head, self.norm = model.lm_head.weight.detach(), model.model.norm.weight.detach()
        self.layers = [_layer(each) for each in model.model.layers]
        angles = torch.arange(slots)[:, None] * model.model.rotary_emb.inv_freq.float()
        self.cos, self.sin = (f(angles).repeat(1, 2).to(dtype) for f in (torch.cos, torch.sin))
        shape = (len(self.layers), rows, self.kv_heads, slots, self.width)
        self.keys, self.values = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)

    @torch.inference_mode()
    def forward(self, tokens: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
        """Last hidden states [R, T, hidden] of tokens [R, T] fed to `rows` [R] at `lengths` [R]."""
        count = tokens.shape[1]
        positions = lengths[:, None] + torch.arange(count)
        seen = int(positions.max()) + 1
        mask = (torch.arange(seen) <= positions[..., None])[:, None]
        rotary = self.cos[positions][:, :, None], self.sin[positions][:, :, None]
        hidden = self.embeddings[tokens]
        for index, layer in enumerate(self.layers):
            states = self._normed(hidden, layer.first_norm)
            mixed = self._attend(index, layer.qkv, states, (rows, positions, mask), rotary)
            hidden = hidden + functional.linear(mixed, layer.output)
            states = self._normed(hidden, layer.second_norm)
            gate, up = functional.linear(states, layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, layer.down)
        return self._normed(hidden, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] float32 of last hidden states [..., hidden]."""
        return functional.linear(hidden, self.head).float()

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self.epsilon)

    def _attend(
        self,
        index: int,
        weight: Tensor,
        states: Tensor,
        where: tuple[Tensor, Tensor, Tensor],
        rotary: tuple[Tensor, Tensor],
    ) -> Tensor:
        rows, positions, mask = where
        batch, count, _ = states.shape
        mixed = functional.linear(states, weight).view(batch, count, -1, self.width)
        turned, values = torch.split(mixed, [self.heads + self.kv_heads, self.kv_heads], dim=2)
        turned = turned * rotary[0] + _half_turned(turned) * rotary[1]
        queries, keys = torch.split(turned, [self.heads, self.kv_heads], dim=2)
        cache, value_cache = self.keys[index], self.values[index]
        cache[rows[:, None], :, positions] = keys
        value_cache[rows[:, None], :, positions] = values
        seen = mask.shape[-1]
        if batch < cache.shape[0]:
            cache, value_cache = cache[rows, :, :seen], value_cache[rows, :, :seen]
        # Queries that share a key head stand side by side as if they were several tokens.
        shared = self.heads // self.kv_heads
        queries = queries.view(batch, count, self.kv_heads, shared, self.width)
        queries = queries.permute(0, 2, 3, 1, 4).flatten(2, 3)
        result = functional.scaled_dot_product_attention(
            queries,
            cache[:, :, :seen],
            value_cache[:, :, :seen],
            attn_mask=mask.repeat(1, 1, shared, 1),
        )
        result = result.view(batch, self.kv_heads, shared, count, self.width)
        return result.permute(0, 3, 1, 2, 4).reshape(batch, count, -1)


def top_law(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Ids [..., 64] int64 and log probabilities [..., 64] of the likeliest tokens."""
    log_probs = logits - logits.logsumexp(dim=-1, keepdim=True)
    values, ids = log_probs.topk(LAW_SIZE, dim=-1)
    return ids, values


def _half_turned(states: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def _layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    packed = [each.weight for each in (attention.q_proj, attention.k_proj, attention.v_proj)]
    return Layer(
        first_norm=layer.input_layernorm.weight.detach(),
        qkv=torch.cat(packed).detach(),
        output=attention.o_proj.weight.detach(),
        second_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).detach(),
        down=mlp.down_proj.weight.detach(),
    )
