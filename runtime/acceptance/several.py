"""Rules for several drafts, a row at a time: the tokens that a round emits.

Each takes the row's draft tokens (K of k), the draft's laws (K of k of V), the target's laws (K of
k + 1 of V) and decisions; see the rule of the same name in `spec_compile.acceptance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
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

_SEARCHES, _INTERVALS, _POINTS = 2, 6, 16
_MARGIN = Fraction(1, 10**5)
Selection = Callable[[list[tuple[int, int]], Weights, Weights, int], int | Weights]
"""Accepts a token of candidates (draft, token) by draft law and target law at a position, or gives
the weights of the token that follows when all are rejected."""


def kseq(
    tokens: Sequence[Tokens], draft: Sequence[Laws], target: Sequence[Laws], decide: Decisions
) -> list[int]:
    """Accept each candidate with probability min(1, scale * target / draft)."""

    def select(
        candidates: list[tuple[int, int]], law: Weights, wanted: Weights, position: int
    ) -> int | Weights:
        scale = largest_scale(law, wanted, len(candidates))
        for index, token in candidates:
            if decide.less(position * len(tokens) + index, law[token], scale * wanted[token]):
                return token
        taken = [min(d, scale * t) for d, t in zip(law, wanted, strict=True)]
        missed: Any = 1 - sum(taken)
        tests = sum(missed**index for index in range(len(candidates)))
        return [max(t - a * tests, t * 0) for t, a in zip(wanted, taken, strict=True)]

    return _walk(tokens, draft, target, decide, select)


def recursive(
    tokens: Sequence[Tokens], draft: Sequence[Laws], target: Sequence[Laws], decide: Decisions
) -> list[int]:
    """Test each candidate against what those before it left of the target."""

    def select(
        candidates: list[tuple[int, int]], law: Weights, wanted: Weights, position: int
    ) -> int | Weights:
        for index, token in candidates:
            if decide.less(position * len(tokens) + index, law[token], wanted[token]):
                return token
            wanted = _normal(or_target(residual(wanted, law), wanted))
        return wanted

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


def largest_scale(draft: Weights, target: Weights, count: int) -> Any:
    """The largest valid scale, 1 / rho of k-SEQ, for `count` candidates, from below."""
    one: Any = sum(target) * 0 + 1
    low: Any = one / count
    high = one
    for _ in range(_SEARCHES):
        ends = [low + (high - low) * (one * end / _INTERVALS) for end in range(_INTERVALS + 1)]
        masses = [sum(min(d, e * t) for d, t in zip(draft, target, strict=True)) for e in ends]
        valid = [_is_valid(e, m, count) for e, m in zip(ends, masses, strict=True)]
        if all(valid):
            return one
        # Larger than one that is not valid, none is: the search goes on in a single chord.
        first = valid.index(False)
        if first:
            low = _largest_on_chord(ends[first - 1 :], masses[first - 1 :], count)
        high = ends[first]
    return low


def _largest_on_chord(ends: Sequence[Any], masses: Sequence[Any], count: int) -> Any:
    """The last valid point from the first of the ends, which is valid, towards the second."""
    best = ends[0]
    for part in range(1, _POINTS):
        share = (ends[0] * 0 + part) / _POINTS
        point = ends[0] + (ends[1] - ends[0]) * share
        if not _is_valid(point, masses[0] + (masses[1] - masses[0]) * share, count):
            break
        best = point
    return best


def _is_valid(scale: Any, mass: Any, count: int) -> bool:
    margin = _MARGIN if isinstance(mass, Fraction) else float(_MARGIN)
    return bool(scale * (1 - (1 - mass) ** count) <= mass * (1 - margin))


def _walk(
    tokens: Sequence[Tokens],
    draft: Sequence[Laws],
    target: Sequence[Laws],
    decide: Decisions,
    select: Selection,
) -> list[int]:
    alive, emitted = list(range(len(tokens))), list[int]()
    num_steps = len(tokens[0])
    draw = len(tokens) * num_steps
    for position in range(num_steps):
        candidates = [(index, tokens[index][position]) for index in alive]
        law, wanted = draft[alive[0]][position], target[alive[0]][position]
        chosen = select(candidates, law, wanted, position)
        if not isinstance(chosen, int):
            return [*emitted, decide.draw(draw, or_target(chosen, wanted))]
        emitted.append(chosen)
        alive = [index for index, token in candidates if token == chosen]
    return [*emitted, decide.draw(draw, target[alive[0]][num_steps])]


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
