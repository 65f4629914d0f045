"""Lenience (Leviathan et al. 2023, arXiv 2211.17192, appendix A.5): more accepted, not exact."""

from __future__ import annotations

from torch import Tensor

from spec_compile.acceptance.rejection import Rejection


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

    def chance(self, draft_mass: Tensor, uniforms: Tensor) -> Tensor:
        """See `Rejection.chance`."""
        return super().chance(draft_mass, uniforms) * self.lenience
