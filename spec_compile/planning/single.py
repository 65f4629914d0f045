"""Models of the rules for one draft; see `spec_compile.planning.observation` for the idea."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from spec_compile.planning.observation import Chances, Law, Observation, leading_products
from spec_compile.runtime.acceptance.single import LENIENCE, TYPICAL_FLOOR, TYPICAL_SCALE


@dataclass(frozen=True)
class Chain:
    """Each draft token is judged by itself, and the first that fails ends the block.

    Args:
        chance: that the token of the text was an accepted draft token.
    """

    chance: Callable[[Observation], float]

    def observe(self, seen: Observation) -> Chances:
        """The chance, a number."""
        return np.array(self.chance(seen))

    def survival(self, observed: Chances, num_speculative_tokens: int) -> Chances:
        """Products of the chances."""
        return leading_products(observed, num_speculative_tokens)


@dataclass(frozen=True)
class Block:
    """Block verification (Sun et al. 2024, arXiv 2403.10444).

    With D_i the product of draft / target over the first i tokens of the block, the chance that at
    least i are accepted, given the text, is the smallest of 1, D_1, .. D_i.
    """

    def observe(self, seen: Observation) -> Chances:
        """draft / target of the token."""
        return np.array(seen.draft[seen.token] / seen.target[seen.token])

    def survival(self, observed: Chances, num_speculative_tokens: int) -> Chances:
        """Running minima of the products."""
        products = leading_products(observed, num_speculative_tokens)
        return np.asarray(np.minimum.accumulate(products, axis=1))


def rejection(seen: Observation) -> float:
    """min(draft, target) of the token, out of its target."""
    return min(1.0, float(seen.draft[seen.token] / seen.target[seen.token]))


def best_token(seen: Observation) -> float:
    """Whether the token is the draft's best: what `greedy` and `match` accept."""
    return float(seen.token == seen.ranked[0])


def lenient(seen: Observation) -> float:
    """min(draft, target / lenience) of the token, out of what the rule emits (`lenient_law`)."""
    accepted = np.minimum(seen.draft, seen.target / LENIENCE)
    return float(accepted[seen.token] / lenient_law(seen.draft, seen.target)[seen.token])


def typical(seen: Observation) -> float:
    """Whether the token is the draft's best and passes the bar: then the rule emits no other."""
    return float(seen.token == seen.ranked[0] and passes_bar(seen.target, seen.token))


def lenient_law(draft: Law, target: Law) -> Law:
    """The law [V] of a token that `lenient` emits at a place that has a draft token."""
    accepted = np.minimum(draft, target / LENIENCE)
    residual = np.maximum(target - draft, 0.0)
    mass = residual.sum()
    left = residual / mass if mass > 0 else target
    return np.asarray(accepted + max(0.0, 1.0 - float(accepted.sum())) * left)


def typical_law(best: int, target: Law) -> Law:
    """The law [V] of a token that `typical` emits where the draft's best token is `best`."""
    if not passes_bar(target, best):
        return target
    law = np.zeros_like(target)
    law[best] = 1.0
    return law


def passes_bar(target: Law, token: int) -> bool:
    """Whether `typical` accepts `token`."""
    held = target[target > 0]
    entropy = -float((held * np.log(held)).sum())
    return bool(target[token] > min(TYPICAL_FLOOR, TYPICAL_SCALE * np.exp(-entropy)))
