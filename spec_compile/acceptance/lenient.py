"""Lenience (Leviathan et al. 2023, arXiv 2211.17192, appendix A.5): more accepted, not exact."""

from __future__ import annotations

from torch import Tensor

from spec_compile.acceptance.base import count_accepted, emit, take_tokens
from spec_compile.acceptance.rejection import Rejection, following_law
from spec_compile.sampling import sample


class Lenient(Rejection):
    """Accept a draft token with probability min(1, target / (lenience * draft)); approximate.

    No token becomes more probable than 1 / lenience times its target probability; a lower bound
    there is none, so rare tokens may vanish. Uniforms as for `rejection`.

    Args:
        lenience: in (0, 1]; 1 is `rejection`.
    """

    name = "lenient"
    exact = False

    def __init__(self, lenience: float = 0.5) -> None:
        self.lenience = lenience

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """See `Rule`. Both laws are required."""
        if uniforms is None or draft_probs is None:
            raise TypeError("the lenient rule needs draft_probs and uniforms")
        draft_mass = take_tokens(draft_probs, draft_tokens)
        target_mass = take_tokens(target_probs, draft_tokens)
        accepted = uniforms[:, :-1] * draft_mass * self.lenience < target_mass
        num_accepted = count_accepted(accepted)
        law = following_law(draft_probs, target_probs, num_accepted)
        return emit(draft_tokens, num_accepted, sample(law, uniforms[:, -1]))
