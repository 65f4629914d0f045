"""The exact output law of a rule: every way its decisions can go, with its probability.

A row rule (see `spec_compile.runtime.acceptance`) runs on fractions. Where it asks about a uniform,
both answers are followed, and each narrows the interval that the uniform lies in. The outcome is
the whole of [0, 1)^n cut into boxes, each with what is emitted there; an implementation on numbers
must emit the same anywhere in the box.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from spec_compile.acceptance import RULES, Drafting
from spec_compile.runtime.acceptance import ROW_RULES, RowRule
from tests.acceptance.laws import Array, Law, Tree, path_probability

Interval = tuple[Fraction, Fraction]
Path = tuple[int, ...]
ArrayRule = Callable[[Array, Array, Array, Array], tuple[Array, Array]]
WHOLE = (Fraction(0), Fraction(1))
# Narrower boxes come from a bisection that has not quite converged: numbers round them away.
_NARROW = Fraction(1, 10**6)
_SHARES = (Fraction(1, 10**6), Fraction(1, 2), 1 - Fraction(1, 10**6))


@dataclass
class Box:
    """Intervals of the uniforms that were asked about, and what is emitted inside."""

    intervals: dict[int, Interval] = field(default_factory=dict)
    emitted: Path = ()

    @property
    def volume(self) -> Fraction:
        value = Fraction(1)
        for low, high in self.intervals.values():
            value *= high - low
        return value

    @property
    def narrowest(self) -> Fraction:
        """Width of the smallest interval."""
        return min((high - low for low, high in self.intervals.values()), default=Fraction(1))


class Explorer:
    """Decisions that follow a script of choices and take the first possibility behind its end."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script, self.box = list(script), Box()
        self.taken: list[tuple[int, int]] = []

    def less(self, index: int, factor: Any, bound: Any) -> bool:
        threshold = bound / factor if factor > 0 else Fraction(int(bound > 0))
        return self._choose(index, [(WHOLE[0], threshold), (threshold, WHOLE[1])]) == 0

    def draw(self, index: int, weights: Sequence[Any]) -> int:
        edges = [Fraction(0), *itertools.accumulate(weights)]
        if edges[-1] == 0:
            return 0
        return self._choose(index, [(a / edges[-1], b / edges[-1]) for a, b in _pairs(edges)])

    def _choose(self, index: int, parts: list[Interval]) -> int:
        low, high = self.box.intervals.get(index, WHOLE)
        cut = [(max(low, a), min(high, b)) for a, b in parts]
        possible = [which for which, (a, b) in enumerate(cut) if a < b]
        step = len(self.taken)
        choice = self.script[step] if step < len(self.script) else 0
        self.taken.append((choice, len(possible)))
        self.box.intervals[index] = cut[possible[choice]]
        return possible[choice]


def _pairs(edges: Sequence[Fraction]) -> Iterator[Interval]:
    return itertools.pairwise(edges)


def boxes(rule: RowRule, tokens: Any, draft: Any, target: Any) -> Iterator[Box]:
    """Every box of one row's round."""
    script: list[int] | None = []
    while script is not None:
        explorer = Explorer(script)
        explorer.box.emitted = tuple(rule(tokens, draft, target, explorer))
        yield explorer.box
        script = _following(explorer.taken)


def _following(taken: list[tuple[int, int]]) -> list[int] | None:
    while taken:
        choice, count = taken.pop()
        if choice + 1 < count:
            return [one for one, _ in taken] + [choice + 1]
    return None


def output_law(
    name: str,
    draft: Tree,
    target: Tree,
    sizes: tuple[int, int],
    implementations: Sequence[ArrayRule] = (),
    row_rule: RowRule | None = None,
) -> dict[Path, Fraction]:
    """Joint law of the first k + 1 tokens of the output, the target completing short rounds.

    Args:
        name: of the rule.
        draft, target: laws after every prefix.
        sizes: number of drafts (0: a rule for one) and of tokens in each.
        implementations: run in every box; have to emit what the row rule does.
        row_rule: None takes the rule's own.
    """
    result: dict[Path, Fraction] = defaultdict(Fraction)
    num_drafts, length = sizes
    for paths, proposed in draft_paths(RULES[name].drafting, draft, max(num_drafts, 1), length):
        tokens: Any = paths if num_drafts else paths[0]
        laws = [_laws_along(draft, path, 0) for path in paths]
        targets = [_laws_along(target, path, 1) for path in paths]
        inputs = (tokens, laws, targets) if num_drafts else (tokens, laws[0], targets[0])
        found = list(boxes(row_rule or ROW_RULES[name], *inputs))
        for run in implementations:
            _compare(run, found, inputs, name, sizes)
        for box in found:
            rests = itertools.product(range(len(target[()])), repeat=length + 1 - len(box.emitted))
            for rest in rests:
                full = box.emitted + rest
                tail = path_probability(target, full, len(box.emitted))
                result[full] += proposed * box.volume * tail
    return {path: value for path, value in result.items() if value}


def mean_emitted(name: str, draft: Tree, target: Tree, sizes: tuple[int, int]) -> Fraction:
    """Expected number of emitted tokens of a round."""
    total = Fraction(0)
    num_drafts, length = sizes
    for paths, proposed in draft_paths(RULES[name].drafting, draft, max(num_drafts, 1), length):
        laws = [_laws_along(draft, path, 0) for path in paths]
        targets = [_laws_along(target, path, 1) for path in paths]
        inputs = (paths, laws, targets) if num_drafts else (paths[0], laws[0], targets[0])
        for box in boxes(ROW_RULES[name], *inputs):
            total += proposed * box.volume * len(box.emitted)
    return total


def draft_paths(
    drafting: Drafting, model: Tree, num_drafts: int, length: int
) -> Iterator[tuple[tuple[Path, ...], Fraction]]:
    """Every set of drafts that may be proposed, and how often."""
    vocab_size = len(model[()])
    if length == 0:
        yield ((),) * num_drafts, Fraction(1)
        return
    rests = list(itertools.product(range(vocab_size), repeat=length - 1))
    for firsts, chance in _first_tokens(drafting, model[()], num_drafts):
        for chosen in itertools.product(rests, repeat=num_drafts):
            paths = tuple((first, *rest) for first, rest in zip(firsts, chosen, strict=True))
            value = chance
            for path in paths:
                value *= path_probability(model, path, 1)
            if drafting is Drafting.GREEDY and any(_not_best(model, path) for path in paths):
                continue
            if drafting is Drafting.GREEDY:
                value = Fraction(1)
            if value:
                yield paths, value


def _first_tokens(drafting: Drafting, law: Law, num_drafts: int) -> Iterator[tuple[Path, Fraction]]:
    if drafting is Drafting.SAMPLED:
        for firsts in itertools.product(range(len(law)), repeat=num_drafts):
            chance = Fraction(1)
            for token in firsts:
                chance *= law[token]
            yield firsts, chance
    elif drafting is Drafting.GREEDY:
        yield (max(range(len(law)), key=law.__getitem__),) * num_drafts, Fraction(1)
    elif drafting is Drafting.WITHOUT_REPLACEMENT:
        yield from _in_turn(law, num_drafts, ())
    else:
        best = sorted(range(len(law)), key=lambda token: -law[token])[: num_drafts - 1]
        for (last,), chance in _in_turn(law, 1, tuple(best)):
            yield (*best, last), chance


def _in_turn(law: Law, count: int, gone: Path) -> Iterator[tuple[Path, Fraction]]:
    """`count` tokens in turn, without those that are gone; the lowest where no mass is left."""
    if count == 0:
        yield (), Fraction(1)
        return
    left = [token for token in range(len(law)) if token not in gone]
    total = sum((law[token] for token in left), Fraction(0))
    chances = {token: law[token] / total for token in left} if total else {left[0]: Fraction(1)}
    for token, chance in chances.items():
        if chance:
            for rest, other in _in_turn(law, count - 1, (*gone, token)):
                yield (token, *rest), chance * other


def _not_best(model: Tree, path: Path) -> bool:
    return any(
        token != max(range(len(model[()])), key=model[path[:i]].__getitem__)
        for i, token in enumerate(path)
    )


def _laws_along(model: Tree, path: Path, further: int) -> list[Law]:
    return [model[path[:i]] for i in range(len(path) + further)]


def _compare(
    run: ArrayRule, found: Sequence[Box], inputs: Any, name: str, sizes: tuple[int, int]
) -> None:
    """The implementation emits in every box what the fractions say, wherever it is tried."""
    found = [box for box in found if box.narrowest > _NARROW]
    num_drafts, length = sizes
    width = RULES[name].uniforms_shape(max(num_drafts, 1), length)[0]
    points = np.full((len(found) * len(_SHARES), width), 0.5)
    for row, (box, share) in enumerate(itertools.product(found, _SHARES)):
        for index, (low, high) in box.intervals.items():
            points[row, index] = float(low + (high - low) * share)
    rows = len(points)
    tokens = np.array(inputs[0], dtype=np.int64)
    vocab_size = len(inputs[2][0][0]) if num_drafts else len(inputs[2][0])
    lead = (num_drafts,) if num_drafts else ()
    draft = np.array(inputs[1], dtype=object).astype(float).reshape(*lead, length, vocab_size)
    target = np.array(inputs[2], dtype=object).astype(float)
    tokens, draft, target = (np.repeat(array[None], rows, 0) for array in (tokens, draft, target))
    output, counts = run(tokens, draft, target, points)
    for row, (box, _) in enumerate(itertools.product(found, _SHARES)):
        assert tuple(output[row, : counts[row]].tolist()) == box.emitted, (inputs, points[row])
