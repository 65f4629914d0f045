"""Acceptance at one position against temperature, for each rule, on synthetic laws.

    python benchmarks/acceptance_curves.py [--svg docs/acceptance.svg]

Target logits fall off like those of words (Zipf), the draft's are the same with normal noise; both
are divided by the temperature. The formulas of `spec_compile.planning.transport` give what each
rule accepts of K candidates; nothing is sampled, no model is involved. Prints a table for K = 2, 4
and 8, and draws it. The ceiling is that of independent candidates: `fanout` chooses its own and may
be above.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from spec_compile.planning.transport import (
    Law,
    fanout_acceptance,
    kseq_acceptance,
    optimal_acceptance,
    recursive_acceptance,
)

TEMPERATURES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
COUNTS = (2, 4, 8)
COLOURS = ("#767676", "#1b7f4d", "#b5541c", "#2456a6", "#a02c68")
FORMULAS: dict[str, Callable[[Law, Law, int], float]] = {
    "one draft": lambda draft, target, count: optimal_acceptance(draft, target, 1),
    "recursive": recursive_acceptance,
    "kseq": kseq_acceptance,
    "fanout": fanout_acceptance,
    "ceiling, independent": optimal_acceptance,
}
Curves = dict[int, dict[str, list[float]]]
_WIDTH, _HEIGHT, _LEFT, _TOP = 300, 240, 46, 34
_LOWEST = 0.5


def curves(vocab_size: int, contexts: int, noise: float, seed: int) -> Curves:
    """Mean acceptance over the contexts: [K][rule][temperature]."""
    rng = np.random.default_rng(seed)
    ranks = rng.permuted(np.tile(np.arange(1, vocab_size + 1), (contexts, 1)), axis=1)
    target = rng.standard_normal(ranks.shape) - 1.6 * np.log(ranks)
    draft = target + noise * rng.standard_normal(ranks.shape)
    found: Curves = {count: {name: [] for name in FORMULAS} for count in COUNTS}
    for temperature in TEMPERATURES:
        laws = [_softmax(logits / temperature) for logits in (draft, target)]
        pairs = list(zip(laws[0], laws[1], strict=True))
        for count in COUNTS:
            for name, formula in FORMULAS.items():
                found[count][name].append(float(np.mean([formula(d, t, count) for d, t in pairs])))
    return found


def table(found: Curves) -> str:
    """The curves as text."""
    lines = []
    for count, rules in found.items():
        lines.append(f"{f'K = {count}':22s}" + "".join(f"{t:7.1f}" for t in TEMPERATURES))
        lines += [f"{n:22s}" + "".join(f"{v:7.3f}" for v in row) for n, row in rules.items()]
    return "\n".join(lines)


def svg(found: Curves) -> str:
    """The curves as a picture, one panel for each K."""
    width = len(found) * (_WIDTH + _LEFT) + 20
    panels = [_panel(place, count, rules) for place, (count, rules) in enumerate(found.items())]
    legend = [
        f'<text x="{_LEFT + place * 190}" y="{_TOP + _HEIGHT + 62}" fill="{colour}">{name}</text>'
        for place, (name, colour) in enumerate(zip(FORMULAS, COLOURS, strict=True))
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_TOP + _HEIGHT + 76}" '
        'font-family="sans-serif" font-size="12">'
    )
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, ground, *panels, *legend, "</svg>", ""])


def _panel(place: int, count: int, rules: dict[str, list[float]]) -> str:
    left = place * (_WIDTH + _LEFT) + _LEFT
    bottom = _TOP + _HEIGHT
    frame = f'<rect x="{left}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" '
    parts = [
        f'{frame}stroke="#999"/>',
        f'<text x="{left}" y="{_TOP - 10}">accepted at one position, K = {count}</text>',
        f'<text x="{left + _WIDTH}" y="{bottom + 34}" text-anchor="end">temperature</text>',
    ]
    for value in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        y = _y(value)
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.1f}</text>')
        parts.append(f'<path d="M{left} {y:.1f}h{_WIDTH}" stroke="#ddd"/>')
    for value in TEMPERATURES[::2]:
        x = left + _x(value)
        text = f'y="{bottom + 18}" text-anchor="middle">{value:.1f}</text>'
        parts.append(f'<text x="{x:.1f}" {text}')
    for (_, values), colour in zip(rules.items(), COLOURS, strict=True):
        parts.append(_line(left, values, colour))
    return "\n".join(parts)


def _line(left: int, values: Sequence[float], colour: str) -> str:
    pairs = zip(TEMPERATURES, values, strict=True)
    points = " ".join(f"{left + _x(t):.1f},{_y(v):.1f}" for t, v in pairs)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _x(temperature: float) -> float:
    low, high = TEMPERATURES[0], TEMPERATURES[-1]
    return (temperature - low) / (high - low) * _WIDTH


def _y(value: float) -> float:
    return _TOP + (1.0 - max(value, _LOWEST)) / (1.0 - _LOWEST) * _HEIGHT


def _softmax(logits: Law) -> Law:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def main() -> int:
    """Compute, print, draw."""
    parser = argparse.ArgumentParser(description="acceptance of each rule against temperature")
    parser.add_argument("--vocab-size", type=int, default=4000)
    parser.add_argument("--contexts", type=int, default=40)
    parser.add_argument("--noise", type=float, default=1.0, help="of the draft's logits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--svg", type=Path, help="draw the curves into this file")
    args = parser.parse_args()
    found = curves(args.vocab_size, args.contexts, args.noise, args.seed)
    print(table(found))
    if args.svg:
        args.svg.write_text(svg(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
