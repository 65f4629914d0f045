"""Inputs for the acceptance kernels, and a float64 judge of what they answered."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

# A decision may go either way when its exact margin is below this share of what it compares: 16
# roundings of float32. Sums of the kernels and of the reference differ by a few of them.
TIE = 2.0**-20


@dataclass(frozen=True)
class Round:
    """Arguments of `accept_rejection`."""

    logits: Tensor
    draft_tokens: Tensor
    draft_probs: Tensor
    temperature: Tensor
    uniforms: Tensor

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """In the operator's order."""
        return (
            self.logits,
            self.draft_tokens,
            self.draft_probs,
            self.temperature,
            self.uniforms,
        )

    def but(self, **changed: Tensor) -> Round:
        """A copy with other tensors."""
        return replace(self, **changed)


def random_round(
    batch: int,
    num_drafts: int,
    vocab_size: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    forbidden: float = 0.0,
    closeness: float = 0.7,
) -> Round:
    """A draft near its target, so that rows accept differently; every third row is greedy.

    Args:
        forbidden: share of tokens with a logit of -inf.
        closeness: standard deviation of the draft's logits around the target's.
    """
    random = torch.Generator().manual_seed(seed)
    shape = (batch, num_drafts + 1, vocab_size)
    logits = torch.randn(shape, generator=random) * 2
    noise = torch.randn(shape, generator=random) * closeness
    draft_probs = torch.softmax((logits + noise)[:, :num_drafts], dim=-1)
    logits[torch.rand(shape, generator=random) < forbidden] = -torch.inf
    flat = draft_probs.reshape(-1, vocab_size)
    drawn = torch.multinomial(flat, 1, generator=random) if num_drafts else flat[:, :1].long()
    temperature = 0.5 + torch.rand(batch, generator=random)
    temperature[2::3] = 0.0
    return Round(
        logits.to(dtype),
        drawn.reshape(batch, num_drafts),
        draft_probs,
        temperature,
        torch.rand((batch, num_drafts + 1), generator=random),
    )


def objection(asked: Round, row: int, tokens: list[int], emitted: int) -> str | None:
    """Why row `row` of an answer is wrong by more than a tie; None when it is right.

    Computed in float64 from the logits as float32, scaled as the reference scales them.
    """
    num_drafts = asked.draft_tokens.shape[1]
    if tokens[emitted:] != [-1] * (num_drafts + 1 - emitted) or not emitted:
        return f"{emitted} emitted, but the tokens are {tokens}"
    target = _target_probs(asked, row)
    draft = asked.draft_probs[row].double()
    for position in range(emitted):
        if position == num_drafts:
            break
        token = int(asked.draft_tokens[row, position])
        left = float(asked.uniforms[row, position].double() * draft[position, token])
        right = float(target[position, token])
        tie = TIE * max(left, right)
        accepted = position < emitted - 1
        if accepted and (tokens[position] != token or not left < right + tie):
            return f"position {position} accepted {tokens[position]}: {left} < {right}"
        if not accepted and left < right - tie:
            return f"position {position} rejected: {left} < {right}"
    return _objection_to_draw(asked, row, target, draft, tokens[emitted - 1], emitted - 1)


def _objection_to_draw(
    asked: Round, row: int, target: Tensor, draft: Tensor, token: int, accepted: int
) -> str | None:
    law = target[accepted]
    if accepted < asked.draft_tokens.shape[1] and float(asked.temperature[row]) > 0:
        residual = (law - draft[accepted]).relu()
        # Two laws equal up to rounding leave a residual of rounding noise, and no law to judge by.
        if float(residual.sum()) <= TIE:
            return None if float(law[token]) > 0 else f"token {token} is forbidden"
        law = residual
    if not float(target[accepted, token]) > 0:
        return f"token {token} is forbidden"
    edges = law.cumsum(dim=0)
    point = float(asked.uniforms[row, -1].double() * edges[-1])
    low = float(edges[token] - law[token])
    if not low - TIE <= point <= float(edges[token]) + TIE:
        return f"token {token} spans {low} to {float(edges[token])}, the point is {point}"
    return None


def _target_probs(asked: Round, row: int) -> Tensor:
    logits, temperature = asked.logits[row].float(), asked.temperature[row]
    if float(temperature) > 0:
        return torch.softmax((logits * temperature.reciprocal()).double(), dim=-1)
    best = [[float(value) for value in position] for position in logits]
    one_hot = torch.zeros_like(logits, dtype=torch.float64)
    for position, values in enumerate(best):
        one_hot[position, values.index(max(values))] = 1.0
    return one_hot
