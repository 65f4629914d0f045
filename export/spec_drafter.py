"""Spec-Drafter: a drafter that fills k masked positions of a translation in one parallel pass.

Xia et al. 2023, "Speculative Decoding: Exploiting Speculative Execution for Accelerating Seq2seq
Generation" (arXiv 2203.16487), section 3.1. It has an encoder of its own, deep, and a shallow
decoder without a cache. The decoder reads the accepted prefix and k masked positions behind it,
each with its own learned query, and attends to all of them in both directions.

Layers are those of Marian (post-norm, sinusoidal positions), under the names that transformers
gives them, so that the encoder of a trained target can be copied in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

LONGEST_WAVE = 10_000.0


@dataclass(frozen=True)
class DrafterSizes:
    """The shape of a Spec-Drafter.

    Args:
        vocab_size: V, tokens of source and target, in one table.
        hidden_size: d, even.
        num_heads: attention heads; a divisor of d.
        encoder_layers: layers of the encoder.
        decoder_layers: layers of the decoder; 1 or 2 keep a round cheap.
        encoder_ffn_size: inner width of the encoder's layers.
        decoder_ffn_size: inner width of the decoder's layers.
        max_speculative_tokens: masked positions that it has a query for, the largest k.
        max_length: positions of a source, and of a prefix and its block together.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    encoder_layers: int
    decoder_layers: int
    encoder_ffn_size: int
    decoder_ffn_size: int
    max_speculative_tokens: int
    max_length: int


class Attention(nn.Module):
    """Multi-head attention of `states` [B, Q, d] to `memory` [B, K, d] where `bias` lets it."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (hidden_size // num_heads) ** -0.5
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, states: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        """Attend; `bias` [B, 1, 1, K] is 0, or very negative where a key is padding."""
        queries = self._heads(self.q_proj(states)) * self.scale
        keys, values = self._heads(self.k_proj(memory)), self._heads(self.v_proj(memory))
        weights = (queries @ keys.transpose(2, 3) + bias).softmax(dim=-1)
        found = (weights.to(values.dtype) @ values).transpose(1, 2).flatten(2)
        result: Tensor = self.out_proj(found)
        return result

    def _heads(self, projected: Tensor) -> Tensor:
        rows, width, size = projected.shape
        split = projected.reshape(rows, width, self.num_heads, size // self.num_heads)
        return split.transpose(1, 2)


class FeedForward(nn.Module):
    """The two matrices of a layer and the norm behind them."""

    def __init__(self, hidden_size: int, ffn_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden_size, ffn_size)
        self.fc2 = nn.Linear(ffn_size, hidden_size)
        self.final_layer_norm = nn.LayerNorm(hidden_size)

    def feed_forward(self, states: Tensor) -> Tensor:
        """The layer's second half: [B, T, d] to [B, T, d]."""
        inner = self.fc2(functional.relu(self.fc1(states)))
        result: Tensor = self.final_layer_norm(states + inner)
        return result


class EncoderLayer(FeedForward):
    """Self-attention over the source."""

    def __init__(self, sizes: DrafterSizes) -> None:
        super().__init__(sizes.hidden_size, sizes.encoder_ffn_size)
        self.self_attn = Attention(sizes.hidden_size, sizes.num_heads)
        self.self_attn_layer_norm = nn.LayerNorm(sizes.hidden_size)

    def forward(self, states: Tensor, bias: Tensor) -> Tensor:
        """[B, S, d] to [B, S, d]."""
        attended = self.self_attn(states, states, bias)
        return self.feed_forward(self.self_attn_layer_norm(states + attended))


class DecoderLayer(FeedForward):
    """Attention in both directions over prefix and block, then to the source."""

    def __init__(self, sizes: DrafterSizes) -> None:
        super().__init__(sizes.hidden_size, sizes.decoder_ffn_size)
        self.self_attn = Attention(sizes.hidden_size, sizes.num_heads)
        self.self_attn_layer_norm = nn.LayerNorm(sizes.hidden_size)
        self.encoder_attn = Attention(sizes.hidden_size, sizes.num_heads)
        self.encoder_attn_layer_norm = nn.LayerNorm(sizes.hidden_size)

    def forward(
        self, states: Tensor, context: Tensor, bias: Tensor, memory: Tensor, memory_bias: Tensor
    ) -> Tensor:
        """`states` [B, Q, d] are those of `context` [B, T + k, d] whose result is wanted."""
        states = self.self_attn_layer_norm(states + self.self_attn(states, context, bias))
        attended = self.encoder_attn(states, memory, memory_bias)
        return self.feed_forward(self.encoder_attn_layer_norm(states + attended))


class _Layers(nn.Module):
    """A stack of layers, under the name that transformers gives it."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)


class SpecDrafter(nn.Module):
    """Proposes k tokens behind every row's accepted prefix; see the module.

    B rows, S source places, T prefix places; B, S and T may be symbolic in torch.export, k is a
    number. What stands in the padding of a row changes none of its results.
    """

    def __init__(self, sizes: DrafterSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.shared = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.mask_queries = nn.Embedding(sizes.max_speculative_tokens, sizes.hidden_size)
        self.encoder = _Layers([EncoderLayer(sizes) for _ in range(sizes.encoder_layers)])
        self.decoder = _Layers([DecoderLayer(sizes) for _ in range(sizes.decoder_layers)])
        table = sinusoids(sizes.max_length, sizes.hidden_size)
        self.register_buffer("positions", table, persistent=False)
        self.positions: Tensor

    def encode(self, source_tokens: Tensor, source_lengths: Tensor) -> Tensor:
        """The source for `propose`: [B, S] and [B] int64 to [B, S, d]."""
        width = source_tokens.shape[1]
        states = self._embed(source_tokens) + self._places(width)
        bias = self._bias(_inside(source_lengths, width))
        for layer in self.encoder.layers:
            states = layer(states, bias)
        return states

    def propose(
        self,
        memory: Tensor,
        source_lengths: Tensor,
        prefix_tokens: Tensor,
        prefix_lengths: Tensor,
        num_speculative_tokens: int | None = None,
        hints: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, k, V] of the k tokens that follow each prefix.

        Args:
            memory: [B, S, d], what `encode` gave.
            source_lengths: [B] int64, real places of the source.
            prefix_tokens: [B, T] int64: the token that the target's decoder starts with, then
                what was accepted so far, padded at the right with any id.
            prefix_lengths: [B] int64, real places of the prefix, at least 1; with k behind them
                at most `max_length`.
            num_speculative_tokens: k; None takes `max_speculative_tokens`.
            hints: [B, k] int64, for training: tokens that the block already shows, -1 where it
                is masked.
        """
        states = self.block_states(
            memory, source_lengths, prefix_tokens, prefix_lengths, num_speculative_tokens, hints
        )
        return functional.linear(states, self.shared.weight)

    def block_states(
        self,
        memory: Tensor,
        source_lengths: Tensor,
        prefix_tokens: Tensor,
        prefix_lengths: Tensor,
        num_speculative_tokens: int | None = None,
        hints: Tensor | None = None,
    ) -> Tensor:
        """What `propose` applies the output layer to: [B, k, d]."""
        block_size = num_speculative_tokens or self.sizes.max_speculative_tokens
        width = prefix_tokens.shape[1]
        prefix = self._embed(prefix_tokens) + self._places(width)
        block = self._block(prefix_lengths, block_size, hints)
        real = _inside(prefix_lengths, width)
        shown = torch.cat([real, real.new_ones(1, block_size).expand(real.shape[0], -1)], dim=1)
        bias = self._bias(shown)
        memory_bias = self._bias(_inside(source_lengths, memory.shape[1]))
        context = torch.cat([prefix, block], dim=1)
        *inner, last = self.decoder.layers
        for layer in inner:
            context = layer(context, context, bias, memory, memory_bias)
        states: Tensor = last(context[:, width:], context, bias, memory, memory_bias)
        return states

    def forward(
        self,
        source_tokens: Tensor,
        source_lengths: Tensor,
        prefix_tokens: Tensor,
        prefix_lengths: Tensor,
    ) -> Tensor:
        """Both steps at once: logits [B, k, V]."""
        memory = self.encode(source_tokens, source_lengths)
        return self.propose(memory, source_lengths, prefix_tokens, prefix_lengths)

    def _block(self, prefix_lengths: Tensor, block_size: int, hints: Tensor | None) -> Tensor:
        """Inputs of the masked positions: their query, and the place in the text: [B, k, d]."""
        slots = torch.arange(block_size, device=prefix_lengths.device)
        queries = self.mask_queries(slots)[None]
        if hints is not None:
            queries = torch.where((hints >= 0)[..., None], self._embed(hints.clamp(0)), queries)
        block: Tensor = queries + self.positions[prefix_lengths[:, None] + slots]
        return block

    def _places(self, width: int) -> Tensor:
        # A lookup, as a slice would bind a symbolic width to the table's size.
        return self.positions[torch.arange(width, device=self.positions.device)]

    def _embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.shared(tokens)
        return embedded * math.sqrt(self.sizes.hidden_size)

    def _bias(self, shown: Tensor) -> Tensor:
        """[B, K] bool to [B, 1, 1, K], added to attention scores."""
        lowest = torch.finfo(self.shared.weight.dtype).min
        hidden = torch.zeros_like(shown, dtype=self.shared.weight.dtype).masked_fill(~shown, lowest)
        return hidden[:, None, None]


def sinusoids(num_positions: int, hidden_size: int) -> Tensor:
    """Position table [num_positions, d]: sines in the first half, cosines in the second."""
    wave = torch.arange(0, hidden_size, 2, dtype=torch.float64) / hidden_size
    angle = torch.arange(num_positions, dtype=torch.float64)[:, None] * LONGEST_WAVE**-wave
    return torch.cat([angle.sin(), angle.cos()], dim=1).float()


def _inside(lengths: Tensor, width: int) -> Tensor:
    return torch.arange(width, device=lengths.device) < lengths[:, None]
