"""The walk down several drafts: at each position one token is chosen, and who has it goes on."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.acceptance.base import Accepted, take_draft
from spec_compile.sampling import sample


class Walk:
    """Which drafts of each row still agree with what was emitted (SpecTr, algorithm 3).

    Args:
        draft_tokens: [B, K, k] int64.
        draft_probs: [B, K, k, V].
        target_probs: [B, K, k + 1, V].

    Attributes:
        alive: [B, K] bool, the drafts that begin with all emitted tokens; where a row has ended,
            those that begin with all but the last.
    """

    def __init__(self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> None:
        self.draft_tokens, self.draft_probs = draft_tokens, draft_probs
        self.target_probs = target_probs
        self.alive = torch.ones_like(draft_tokens[:, :, 0], dtype=torch.bool)
        self._ended = torch.zeros_like(self.alive[:, 0])
        self._output: list[Tensor] = []

    @property
    def survivor(self) -> Tensor:
        """[B] int64, the first draft alive; its laws are those of all others alive."""
        return self.alive.int().argmax(dim=1)

    def laws(self, position: int) -> tuple[Tensor, Tensor]:
        """Draft law and target law [B, V] after what was emitted."""
        survivor = self.survivor
        return (
            take_draft(self.draft_probs[:, :, position], survivor),
            take_draft(self.target_probs[:, :, position], survivor),
        )

    def advance(self, position: int, token: Tensor) -> None:
        """Emit `token` [B]; drafts without it drop out, and the row ends when none is left."""
        self._output.append(torch.where(self._ended, -1, token))
        followed = self.alive & (self.draft_tokens[:, :, position] == token[:, None])
        self._ended = self._ended | ~followed.any(dim=1)
        # `where` on truth values is missing in some engines.
        ended = self._ended[:, None]
        self.alive = (self.alive & ended) | (followed & ~ended)

    def finish(self, uniforms: Tensor) -> Accepted:
        """Emit the bonus token, drawn with `uniforms` [B], in rows that have not ended."""
        last = self.draft_tokens.shape[-1]
        survivor = self.survivor
        bonus = sample(take_draft(self.target_probs[:, :, last], survivor), uniforms)
        self._output.append(torch.where(self._ended, -1, bonus))
        output = torch.stack(self._output, dim=1)
        return Accepted(output, (output >= 0).long().sum(dim=1), survivor)


def first_or(accepted: Tensor, tokens: Tensor, otherwise: Tensor) -> Tensor:
    """The first accepted of tokens [B, K] (mask [B, K]), or `otherwise` [B] where none is."""
    first = tokens.gather(1, accepted.int().argmax(dim=1)[:, None])[:, 0]
    return torch.where(accepted.any(dim=1), first, otherwise)
