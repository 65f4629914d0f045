"""An acceptance rule of one's own: written, proven on a tiny vocabulary, compiled and checked.

    python examples/own_rule.py

The rule is SpecTr's selection with a division factor (Sun et al. 2023, arXiv 2310.15141,
algorithm 2) for a single draft. It accepts less than `rejection`, which is the same with a factor
of 1, and is as exact: what it does not accept of a token, it gives back in the law of the next.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

import spec_compile
from spec_compile.acceptance import Rule
from spec_compile.acceptance.base import (
    count_accepted,
    emit,
    has_mass,
    required,
    take_rows,
    take_tokens,
)
from spec_compile.check import CheckOptions, check_bundle
from spec_compile.sampling import sample


class Divided(Rule):
    """Accept a draft token with probability min(1, target / (factor * draft)); exact.

    Args:
        factor: at least 1.
    """

    name = "divided"
    exact = True

    def __init__(self, factor: float = 1.5) -> None:
        self.factor = factor

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """See `Rule`."""
        draft_probs, uniforms = required(self.name, draft_probs, uniforms)
        num_drafted = draft_tokens.shape[-1]
        if num_drafted == 0:
            following = sample(target_probs[:, 0], uniforms[:, 0])
            return emit(draft_tokens, following * 0, following)
        draft_mass = take_tokens(draft_probs, draft_tokens)
        target_mass = take_tokens(target_probs, draft_tokens)
        # Strict, so that a token which the target forbids is refused at uniform 0 too.
        accepted = uniforms[:, :num_drafted] * draft_mass * self.factor < target_mass
        num_accepted = count_accepted(accepted)
        target_row = take_rows(target_probs, num_accepted)
        draft_row = take_rows(draft_probs, num_accepted.clamp(max=num_drafted - 1))
        given = torch.minimum(draft_row, target_row / self.factor)
        recovers = (num_accepted < num_drafted)[:, None] & has_mass(target_row - given)
        law = torch.where(recovers, target_row - given, target_row)
        return emit(draft_tokens, num_accepted, sample(law, uniforms[:, num_drafted]))


def largest_error(rule: Rule, num_uniforms: int = 120) -> float:
    """Largest difference between the law of the first token and the target's, on three tokens.

    Every draft token and a fine grid of uniforms are tried, so the difference is at most what the
    grid's steps make: about 2 / `num_uniforms`.
    """
    draft = torch.tensor([0.7, 0.1, 0.2], dtype=torch.float64)
    target = torch.tensor([[0.3, 0.5, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
    steps = (torch.arange(num_uniforms, dtype=torch.float64) + 0.5) / num_uniforms
    grid = torch.tensor(list(itertools.product(steps.tolist(), repeat=2)), dtype=torch.float64)
    rows = len(grid)
    law = torch.zeros(3, dtype=torch.float64)
    for token, mass in enumerate(draft.tolist()):
        tokens = torch.full((rows, 1), token)
        laws = draft.expand(rows, 1, 3), target.expand(rows, 2, 3)
        output, _ = rule(tokens, *laws, grid)
        law += mass * torch.bincount(output[:, 0], minlength=3) / rows
    return float((law - target[0]).abs().max())


def main() -> None:
    """Prove the rule, compile the demonstration pair with it, check and use the bundle."""
    rule = Divided()
    print(f"largest error of the law on three tokens: {largest_error(rule):.4f}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "bundle"
        config = spec_compile.SpecConfig(num_speculative_tokens=3, max_length=128)
        spec_compile.compile("llama", "small", folder, config, rule=rule)
        report = check_bundle(folder, CheckOptions(law_samples=1000, max_new_tokens=16))
        for one in report.results:
            print(f"{one.name}: {one.status} {one.detail}")
        result = spec_compile.load(folder).generate("def ", max_new_tokens=48, temperature=1.0)
        print(f"block efficiency {result.stats.block_efficiency:.2f}")
        if not report.passed:
            sys.exit(1)


if __name__ == "__main__":
    main()
