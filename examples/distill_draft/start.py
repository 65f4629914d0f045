"""First weights that can already copy: the two-layer circuit that looks up what came next before.

Layer 1 writes the code of each token's predecessor, and of the one before it, beside the token's
own. Layer 2 looks for the place whose predecessors are the tokens at hand and fetches the token
there (Olsson et al., "In-context learning and induction heads", 2022). Training finds this by
itself only after many tokens; a small target repeats itself all the time.

The residual stream has parts: one constant, the token's content, the codes of the two tokens before
it, and what is fetched. All of it is trained on afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CONSTANT = 24.0
CODE, FETCHED = 32, 64
FIRST_MATCH, SECOND_MATCH = 24, 16
LOCAL_PAIRS, SLOW_PAIR = 5, 12
NEIGHBOUR_SHARPNESS, SELF_SCORE = 10.0, 0.4
# Scores of a full match of one token and of the one before it, per query head.
MATCH_SCORES = ((9.0, 6.0), (6.0, 9.0))
FETCHED_GAIN, NOISE = 0.25, 0.02


@dataclass(frozen=True)
class Layout:
    """Where the parts of the residual stream begin: constant at 0, content from 1."""

    content: int
    previous: int
    before: int
    fetched: int


def layout(width: int) -> Layout:
    """The parts of a residual stream of this width."""
    fetched = width - FETCHED
    return Layout(fetched - 2 * CODE - 1, fetched - 2 * CODE, fetched - CODE, fetched)


def content_projection(embeddings: Tensor, frequency: Tensor, size: int) -> Tensor:
    """[1 + size, hidden]: a constant, then decorrelated content, from embeddings [V, hidden].

    Args:
        embeddings: the target's.
        frequency: [V], how often each token occurs, summing to 1.
        size: directions of content.
    """
    weights = 0.5 * frequency + 0.5 / len(frequency)
    moments = (embeddings * weights[:, None]).T @ embeddings
    mean = weights @ embeddings
    ridge = 1e-6 * moments.diagonal().mean() * torch.eye(len(mean))
    constant = torch.linalg.solve(moments + ridge, mean)  # constant @ embedding is 1, nearly
    centred = embeddings - (embeddings @ constant)[:, None] * mean
    values, axes = torch.linalg.eigh((centred * weights[:, None]).T @ centred)
    main = (axes[:, -size:] * values[-size:].clamp(min=1e-9).rsqrt()).T
    mix, _ = torch.linalg.qr(torch.randn(size, size))  # any few directions tell tokens apart
    content = mix @ main
    content = content - torch.outer(content @ mean, constant)
    return torch.cat([CONSTANT * constant[None], content])


@torch.no_grad()
def install(draft: Any, frequency: Tensor) -> None:
    """Write the first weights of a `Draft` of two layers, two query heads to a key head.

    Args:
        draft: freshly made.
        frequency: [V], how often each token occurs, summing to 1.
    """
    width = draft.projection.weight.shape[0]
    parts = layout(width)
    for weight in draft.parameters():
        if weight.dim() > 1:
            weight.copy_(NOISE * torch.randn_like(weight))
    projection = content_projection(draft.embeddings, frequency, parts.content)
    draft.projection.weight.zero_()
    draft.projection.weight[: parts.content + 1] = projection
    first, second = draft.model.layers
    own, written = CONSTANT**2 + parts.content, 2 * CODE
    norms = (
        (first.input_layernorm, own),
        (first.post_attention_layernorm, own + written),
        (second.input_layernorm, own + written),
        (second.post_attention_layernorm, own + written + FETCHED),
        (draft.model.norm, own + written + FETCHED),
    )
    for norm, squares in norms:
        # Every reader finds a constant of 1 and content of variance 1.
        norm.weight.fill_((squares / width) ** 0.5)
        norm.weight[0] /= CONSTANT
    _look_back(first.self_attn, draft.model.rotary_emb.inv_freq, parts)
    _fetch(second.self_attn, draft.sizes["head_dim"], parts)
    states = draft.embeddings[draft.token_ids] @ draft.projection.weight.T
    draft.head.weight.zero_()
    draft.head.weight[:, parts.fetched :] = FETCHED_GAIN * states[:, 1 : 1 + FETCHED]
    known = frequency[draft.token_ids] + 1e-6
    draft.head.weight[:, 0] = known.log()


def _look_back(attention: nn.Module, frequencies: Tensor, parts: Layout) -> None:
    """Heads 0 and 1 look one and two tokens back and write the codes they find."""
    weights: Mapping[str, Tensor] = dict(attention.named_parameters())
    query, key = weights["q_proj.weight"], weights["k_proj.weight"]
    width = 2 * len(frequencies)
    strength = (NEIGHBOUR_SHARPNESS * width**0.5) ** 0.5
    query[: 2 * width], key[:width] = 0.0, 0.0
    for pair in range(LOCAL_PAIRS):
        key[pair, 0] = strength
        for head, offset in enumerate((1, 2)):
            angle = frequencies[pair] * offset
            query[head * width + pair, 0] = strength * angle.cos()
            query[head * width + pair + width // 2, 0] = -strength * angle.sin()
    value, output = weights["v_proj.weight"], weights["o_proj.weight"]
    for index in range(CODE):
        value[index] = 0.0
        value[index, 1 + index] = 1.0
        output[parts.previous + index, index] = 1.0
        output[parts.before + index, width + index] = 1.0


def _fetch(attention: nn.Module, width: int, parts: Layout) -> None:
    """Heads 0 and 1 find places behind the tokens at hand and fetch what stands there."""
    weights: Mapping[str, Tensor] = dict(attention.named_parameters())
    query, key = weights["q_proj.weight"], weights["k_proj.weight"]
    query[: 2 * width], key[:width] = 0.0, 0.0
    # Slow pairs of the rotation hardly turn over some hundred tokens: there content is compared.
    slow = [*range(SLOW_PAIR, width // 2), *range(width // 2 + SLOW_PAIR, width)]
    for index, place in enumerate(slow[: FIRST_MATCH + SECOND_MATCH]):
        second = index - FIRST_MATCH
        key[place, parts.previous + index if second < 0 else parts.before + second] = 1.0
        for head, (one, two) in enumerate(MATCH_SCORES):
            score = one / FIRST_MATCH if second < 0 else two / SECOND_MATCH
            source = 1 + index if second < 0 else parts.previous + second
            query[head * width + place, source] = score * width**0.5
    # Without a match a token looks at itself, which the head can learn to leave out.
    for pair in range(SLOW_PAIR // 2):
        key[pair, 0] = 1.0
        for head, (one, _) in enumerate(MATCH_SCORES):
            score = SELF_SCORE * one / (SLOW_PAIR // 2)
            query[head * width + pair, 0] = score * width**0.5
    value, output = weights["v_proj.weight"], weights["o_proj.weight"]
    for index in range(FETCHED):
        value[index] = 0.0
        value[index, 1 + index] = 1.0
        for head in range(2):
            output[parts.fetched + index, head * width + index] = 0.5
