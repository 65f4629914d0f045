"""Rules for several drafts, a row at a time: the tokens that a round emits.

Each takes the row's draft tokens (K of k), the draft's laws (K of k of V), the target's laws (K of
k + 1 of V) and decisions; see the rule of the same name in `spec_compile.acceptance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spec_compile.runtime.acceptance.decisions import Decisions, Weights
from spec_compile.runtime.acceptance.single import (
    NO_MASS,
    Laws,
    Tokens,
    block,
    or_target,
    residual,
)

_BISECTIONS = 24
Selection = Callable[[list[tuple[int, int]], Weights, Weights, int], int]
"""Chooses a token from candidates (draft, token), draft law and target law at a position."""


def kseq(
    tokens: Sequence[Tokens], draft: Sequence[Laws], target: Sequence[Laws], decide: Decisions
) -> list[int]:
    """Accept each candidate with probability min(1, target / (rho * draft))."""
    num_drafts, num_tests = len(tokens), len(tokens) * len(tokens[0])

    def select(
        candidates: list[tuple[int, int]], law: Weights, wanted: Weights, position: int
    ) -> int:
        rho = division_factor(law, wanted, len(candidates), num_drafts)
        for index, token in candidates:
            if decide.less(position * num_drafts + index, rho * law[token], wanted[token]):
                return token
        accepted = [min(d, t / rho) for d, t in zip(law, wanted, strict=True)]
        tries = _tries(sum(accepted), len(candidates))
        left = [max(t - a * tries, t * 0) for t, a in zip(wanted, accepted, strict=True)]
        return decide.draw(num_tests + position, or_target(left, wanted))

    return _walk(tokens, draft, target, decide, select)


def recursive(
    tokens: Sequence[Tokens], draft: Sequence[Laws], target: Sequence[Laws], decide: Decisions
) -> list[int]:
    """Test each candidate against what those before it left of the target."""
    num_drafts, num_tests = len(tokens), len(tokens) * len(tokens[0])

    def select(
        candidates: list[tuple[int, int]], law: Weights, wanted: Weights, position: int
    ) -> int:
        for index, token in candidates:
            if decide.less(position * num_drafts + index, law[token], wanted[token]):
                return token
            wanted = _normal(or_target(residual(wanted, law), wanted))
        return decide.draw(num_tests + position, wanted)

    return _walk(tokens, draft, target, decide, select)


def recursive_wor(
    tokens: Sequence[Tokens], draft: Sequence[Laws], target: Sequence[Laws], decide: Decisions
) -> list[int]:
    """As `recursive` for first tokens drawn without replacement; then one chain."""
    law, wanted = list(draft[0][0]), target[0][0]
    chosen = None
    for index, (token, *_) in enumerate(tokens):
        if not any(mass > 0 for mass in law):
            law[token] = law[token] + 1
        if decide.less(index, law[token], wanted[token]):
            chosen = token
            break
        wanted = _normal(or_target(residual(wanted, law), wanted))
        law[token] = law[token] * 0
        law = list(_normal(law))
    if chosen is None:
        chosen = decide.draw(len(tokens), wanted)
    return _follow(tokens, draft, target, decide, chosen, len(tokens) + 1)


def fanout(
    tokens: Sequence[Tokens], draft: Sequence[Laws], target: Sequence[Laws], decide: Decisions
) -> list[int]:
    """One step of `rejection` with the drawn first token; the best ones count as accepted too."""
    law, wanted = list(draft[0][0]), target[0][0]
    proposed = tokens[-1][0]
    for token, *_ in tokens[:-1]:
        law[token] = law[token] * 0
    if not sum(law) > NO_MASS:
        law[proposed] = law[proposed] + 1
    law = list(_normal(law))
    if decide.less(0, law[proposed], wanted[proposed]):
        chosen = proposed
    else:
        chosen = decide.draw(1, or_target(residual(wanted, law), wanted))
    return _follow(tokens, draft, target, decide, chosen, 2)


def division_factor(draft: Weights, target: Weights, count: int, num_drafts: int) -> Any:
    """The smallest valid rho of k-SEQ for `count` candidates, from above."""
    one = target[0] * 0 + 1
    low, high = one, one * count
    for _ in range(_BISECTIONS if num_drafts > 1 else 0):
        middle = (low + high) / 2
        mass = sum(min(d, t / middle) for d, t in zip(draft, target, strict=True))
        low, high = (low, middle) if _tries(mass, count) <= middle else (middle, high)
    return high


def _tries(mass: Any, count: int) -> Any:
    return sum((1 - mass) ** index for index in range(count))


def _walk(
    tokens: Sequence[Tokens],
    draft: Sequence[Laws],
    target: Sequence[Laws],
    decide: Decisions,
    select: Selection,
) -> list[int]:
    alive, emitted = list(range(len(tokens))), list[int]()
    num_steps = len(tokens[0])
    for position in range(num_steps):
        candidates = [(index, tokens[index][position]) for index in alive]
        laws = draft[alive[0]][position], target[alive[0]][position]
        emitted.append(select(candidates, *laws, position))
        alive = [index for index, token in candidates if token == emitted[-1]]
        if not alive:
            return emitted
    last = len(tokens) * num_steps + num_steps
    return [*emitted, decide.draw(last, target[alive[0]][num_steps])]


def _follow(
    tokens: Sequence[Tokens],
    draft: Sequence[Laws],
    target: Sequence[Laws],
    decide: Decisions,
    chosen: int,
    first: int,
) -> list[int]:
    """Judge the first draft that begins with `chosen` by `block`, if there is one."""
    for own, draft_laws, target_laws in zip(tokens, draft, target, strict=True):
        if own[0] == chosen:
            return [chosen, *block(own[1:], draft_laws[1:], target_laws[1:], decide, first)]
    return [chosen]


def _normal(weights: Weights) -> Weights:
    total = sum(weights)
    return [weight / total for weight in weights] if total > 0 else weights
