"""Rules for one draft, a row at a time: the tokens that a round emits.

Each takes the row's draft tokens (k), the draft's laws (k of V), the target's laws (k + 1 of V) and
decisions; see the rule of the same name in `spec_compile.acceptance` for source and guarantee.
Masses may be floats or fractions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spec_compile.config import SPECDEC_BETA, SPECDEC_TAU
from spec_compile.runtime.acceptance.decisions import Decisions, Weights

NO_MASS = 1e-30
LENIENCE = 0.5
TYPICAL_FLOOR, TYPICAL_SCALE = 0.09, 0.3

Tokens = Sequence[int]
Laws = Sequence[Weights]


def greedy(tokens: Tokens, draft: Laws | None, target: Laws, decide: Decisions | None) -> list[int]:
    """Accept while the draft token is the target's best one."""
    best = [int(np.argmax(law)) for law in target]
    accepted = _prefix(token == own for token, own in zip(tokens, best, strict=False))
    return [*tokens[:accepted], best[accepted]]


def rejection(tokens: Tokens, draft: Laws, target: Laws, decide: Decisions) -> list[int]:
    """Accept with probability min(1, target / draft)."""
    return _reject(tokens, draft, target, decide, 1)


def lenient(tokens: Tokens, draft: Laws, target: Laws, decide: Decisions) -> list[int]:
    """Accept with probability min(1, target / (lenience * draft))."""
    return _reject(tokens, draft, target, decide, LENIENCE)


def match(tokens: Tokens, draft: Laws | None, target: Laws, decide: Decisions) -> list[int]:
    """Accept while the target draws the draft token itself."""
    emitted: list[int] = []
    for position, law in enumerate(target):
        emitted.append(decide.draw(position, law))
        if position == len(tokens) or emitted[-1] != tokens[position]:
            break
    return emitted


def typical(tokens: Tokens, draft: Laws | None, target: Laws, decide: Decisions) -> list[int]:
    """Accept what passes a bar that falls with the target's entropy."""

    def passes(token: int, law: Weights) -> bool:
        entropy = -sum(mass * math.log(mass) for mass in law if mass > 0)
        return bool(law[token] > min(TYPICAL_FLOOR, TYPICAL_SCALE * math.exp(-entropy)))

    accepted = _prefix(passes(token, law) for token, law in zip(tokens, target, strict=False))
    return [*tokens[:accepted], decide.draw(0, target[accepted])]


def specdec(
    tokens: Tokens,
    draft: Laws | None,
    target: Laws,
    decide: Decisions | None,
    beta: int = SPECDEC_BETA,
    tau: float = SPECDEC_TAU,
) -> list[int]:
    """Accept what is the target's best token or near it; `target` holds logits."""

    def passes(token: int, own: int, logits: Weights) -> bool:
        if token == own or beta == 1 or token < 0:
            return token == own
        larger = sum(1 for logit in logits if logit > logits[token])
        return larger < beta and bool(logits[own] - logits[token] <= tau)

    best = [int(np.argmax(logits)) for logits in target]
    accepted = _prefix(map(passes, tokens, best, target))
    return [*tokens[:accepted], best[accepted]]


def block(
    tokens: Tokens, draft: Laws, target: Laws, decide: Decisions, first: int = 0
) -> list[int]:
    """Accept the longest prefix that passes its own test; uniforms count from number `first`."""
    length = len(tokens)
    weights: list[Any] = [target[0][0] * 0 + 1]
    for position, token in enumerate(tokens):
        ratio = target[position][token] / max(draft[position][token], NO_MASS)
        weights.append(min(weights[-1] * ratio, weights[0]))
    passed: list[int] = []
    for position in range(1, length + 1):
        if position == length:
            chance, total = weights[length], weights[0]
        else:
            chance = sum(residual(target[position], draft[position], weights[position]))
            total = chance + 1 - weights[position]
        if total <= 0 or decide.less(first + position - 1, total, chance):
            passed.append(position)
    accepted = max(passed, default=0)
    law: Weights = target[accepted]
    if accepted < length:
        law = or_target(residual(law, draft[accepted], weights[accepted]), law)
    return [*tokens[:accepted], decide.draw(first + length, law)]


def residual(target: Weights, draft: Weights, weight: Any = 1) -> list[Any]:
    """max(0, weight * target - draft), token by token."""
    return [max(weight * t - d, t * 0) for t, d in zip(target, draft, strict=True)]


def or_target(left: Weights, target: Weights) -> Weights:
    """`left`, or the target's law where it has no mass."""
    return left if sum(left) > NO_MASS else target


def _reject(
    tokens: Tokens, draft: Laws, target: Laws, decide: Decisions, lenience: float
) -> list[int]:
    for position, token in enumerate(tokens):
        proposed, wanted = draft[position][token], target[position][token]
        if not decide.less(position, lenience * proposed, wanted):
            law = or_target(residual(target[position], draft[position]), target[position])
            return [*tokens[:position], decide.draw(len(tokens), law)]
    return [*tokens, decide.draw(len(tokens), target[len(tokens)])]


def _prefix(accepted: Any) -> int:
    count = 0
    for one in accepted:
        if not one:
            break
        count += 1
    return count
