"""Operators of our own: what a backend lowers as a whole is one node, so nothing has to find it.

`spec_compile::cached_attention` is attention with its cache write, one node per layer;
`spec_compile::process_logits` is the sampling transforms, whose branches trace slowly and are
therefore traced once per backend build instead of once per use.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile import sampling


@torch.library.custom_op("spec_compile::cached_attention", mutates_args=())
def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    lengths: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the new keys and values behind each row's valid entries, then attend.

    Args:
        query: [B, H, T, D].
        key: [B, H_kv, T, D]; H is a multiple of H_kv.
        value: [B, H_kv, T, D_v].
        key_cache: [B, H_kv, S, D], float of the same type.
        value_cache: [B, H_kv, S, D_v].
        lengths: [B] int64, valid cache entries per row; lengths + T <= S.
        mask: [B or 1, 1, T, S] bool, True where a query may look; or [B or 1, H, T, S] float, a
            bias by head and position, -inf where it may not.
        scale: factor on query @ key.
        softcap: scores become softcap * tanh(scores / softcap) before the mask; 0 leaves them.

    Returns:
        The attention output [B, H, T, D_v] and both caches with the new entries.
    """
    new_keys = _write(key_cache, key, lengths)
    new_values = _write(value_cache, value, lengths)
    output = masked_attention(query, new_keys, new_values, mask, scale, softcap)
    return output, new_keys, new_values


def masked_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float = 0.0
) -> Tensor:
    """Attention of `query` [B, H, T, D] over all `keys` and `values`; `mask` is as above."""
    groups = query.shape[1] // keys.shape[1]
    if groups > 1:
        keys, values = (each.repeat_interleave(groups, dim=1) for each in (keys, values))
    scores = query @ keys.transpose(-1, -2) * scale
    if softcap > 0.0:
        scores = softcap * torch.tanh(scores / softcap)
    if mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    else:
        scores = scores + mask
    # A cast to float32 follows transformers' eager attention and costs nothing in float32.
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return weights @ values


def _write(cache: Tensor, entries: Tensor, lengths: Tensor) -> Tensor:
    rows = torch.arange(entries.shape[0])[:, None]
    slots = lengths[:, None] + torch.arange(entries.shape[2])
    updated = cache.clone()
    updated.transpose(1, 2)[rows, slots] = entries.transpose(1, 2)
    return updated


@cached_attention.register_fake
def _fake_cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    lengths: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    del key, lengths, mask, scale, softcap
    output = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return output, torch.empty_like(key_cache), torch.empty_like(value_cache)


CACHED_ATTENTION = torch.ops.spec_compile.cached_attention.default


@torch.library.custom_op("spec_compile::move_entries", mutates_args=())
def move_entries(cache: Tensor, source: Tensor, destination: Tensor) -> Tensor:
    """Copy cache entries of the draft that survived to where the next round expects them.

    Args:
        cache: [B, H_kv, S, D].
        source: [B, N] int64, slots to copy from.
        destination: [B] int64, the slot that the first of them goes to; the others follow it.

    Returns:
        The cache with the copies.
    """
    index = source[:, None, :, None].expand(-1, cache.shape[1], -1, cache.shape[3])
    return _write(cache, cache.gather(2, index), destination)


@move_entries.register_fake
def _fake_move_entries(cache: Tensor, source: Tensor, destination: Tensor) -> Tensor:
    del source, destination
    return torch.empty_like(cache)


MOVE_ENTRIES = torch.ops.spec_compile.move_entries.default


@torch.library.custom_op("spec_compile::process_logits", mutates_args=())
def process_logits(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """`spec_compile.sampling.process_logits` as one graph node: [B, R, V] to [B, R, V] float32."""
    return sampling.process_logits(logits, sampling.Sampling(temperature, top_k, top_p, min_p))


@process_logits.register_fake
def _fake_process_logits(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    del temperature, top_k, top_p, min_p
    return torch.empty_like(logits, dtype=torch.float32)


PROCESS_LOGITS = torch.ops.spec_compile.process_logits.default
