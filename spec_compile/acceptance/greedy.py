"""Greedy acceptance: the output is token for token that of the target decoded greedily."""

from __future__ import annotations

from torch import Tensor

from spec_compile.acceptance.base import Drafting, Rule, count_accepted, emit, require_single_draft
from spec_compile.sampling import argmax


class Greedy(Rule):
    """Accept while the draft token is the target's best one, the lowest id among equals.

    `target_probs` may hold raw logits of any float type: only their order matters. Takes no
    draft probabilities and no uniforms.
    """

    name = "greedy"
    exact = True
    drafting = Drafting.GREEDY
    samples = False
    symbolic_length = True

    def uniforms_shape(self, num_drafts: int, num_speculative_tokens: int) -> tuple[int, ...]:
        """No randomness: (0,)."""
        require_single_draft(self.name, num_drafts)
        return (0,)

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """See `Rule`; `draft_probs` and `uniforms` are ignored."""
        best = argmax(target_probs.float())
        num_accepted = count_accepted(draft_tokens == best[:, :-1])
        following = best.gather(1, num_accepted[:, None])[:, 0]
        return emit(draft_tokens, num_accepted, following)
