"""The walk down several drafts: at each position one token is accepted, and who has it goes on."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.acceptance.base import Accepted, emit, has_mass, take_draft, take_rows
from spec_compile.sampling import sample


class Walk:
    """Which drafts of each row still agree with what was accepted (SpecTr, algorithm 3).

    The walk of a row ends at the first position where no candidate is accepted. Next to nothing is
    lost by not looking whether the token drawn there happens to be a candidate: what is left of the
    target holds little or nothing of the rejected ones. So a round draws one token, at its end.

    Args:
        draft_tokens: [B, K, k] int64.
        draft_probs: [B, K, k, V].
        target_probs: [B, K, k + 1, V].

    Attributes:
        alive: [B, K] bool, the drafts that begin with all accepted tokens.
        going: [B] bool, False where the walk has ended.
        num_accepted: [B] int64.
    """

    def __init__(self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> None:
        self.draft_tokens = draft_tokens
        # Flat, so that one gather takes a row and nothing copies those of the other drafts.
        self._draft_rows = draft_probs.flatten(1, 2)
        self._target_rows = target_probs.flatten(1, 2)
        self.num_steps = draft_tokens.shape[2]
        self.alive = torch.ones_like(draft_tokens[:, :, 0], dtype=torch.bool)
        self.going = torch.ones_like(self.alive[:, 0])
        self.num_accepted = torch.zeros_like(draft_tokens[:, 0, 0])

    @property
    def survivor(self) -> Tensor:
        """[B] int64, the first draft alive; its laws are those of all others alive."""
        return self.alive.int().argmax(dim=1)

    @property
    def num_candidates(self) -> Tensor:
        """[B, 1] int64, the drafts alive."""
        return self.alive.long().sum(dim=1, keepdim=True)

    def laws(self, position: int) -> tuple[Tensor, Tensor]:
        """Draft law and target law [B, V] after the accepted tokens, at `position` < k."""
        survivor = self.survivor
        return (
            take_rows(self._draft_rows, survivor * self.num_steps + position),
            take_rows(self._target_rows, survivor * (self.num_steps + 1) + position),
        )

    def advance(self, position: int, passed: Tensor) -> None:
        """Accept the first candidate alive that `passed` [B, K], or end the walk of the row."""
        passed = passed & self.alive & self.going[:, None]
        tokens = self.draft_tokens[:, :, position]
        accepted = tokens.gather(1, passed.int().argmax(dim=1)[:, None])
        self.going = passed.any(dim=1)
        self.alive = self.alive & ((tokens == accepted) | ~self.going[:, None])
        self.num_accepted = self.num_accepted + self.going.long()

    def last_laws(self) -> tuple[Tensor, Tensor]:
        """Draft law and target law [B, V] where each walk ended; the last draft law behind k."""
        survivor, ended = self.survivor, self.num_accepted
        return (
            take_rows(
                self._draft_rows, survivor * self.num_steps + ended.clamp(max=self.num_steps - 1)
            ),
            take_rows(self._target_rows, survivor * (self.num_steps + 1) + ended),
        )

    def finish(self, residual: Tensor, target_law: Tensor, uniforms: Tensor) -> Accepted:
        """Draw the token that follows with `uniforms` [B].

        Args:
            residual: weights [B, V] where a walk ended early; without mass, the target's law.
            target_law: [B, V], of `last_laws`: the bonus token of a walk that did not end.
            uniforms: [B] in [0, 1).
        """
        recovers = ~self.going[:, None] & has_mass(residual)
        following = sample(torch.where(recovers, residual, target_law), uniforms)
        survivor = self.survivor
        path = take_draft(self.draft_tokens, survivor)
        return Accepted(*emit(path, self.num_accepted, following), survivor)


def first_or(accepted: Tensor, tokens: Tensor, otherwise: Tensor) -> Tensor:
    """The first accepted of tokens [B, K] (mask [B, K]), or `otherwise` [B] where none is."""
    first = tokens.gather(1, accepted.int().argmax(dim=1)[:, None])[:, 0]
    return torch.where(accepted.any(dim=1), first, otherwise)
