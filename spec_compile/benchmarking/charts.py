"""Bar and line charts as SVG text, coloured by the page that they stand in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _LABELS, _NOTES = 860, 250, 120
_BAR, _GAP = 20, 8
_HEIGHT, _LEFT, _BOTTOM, _TOP = 280, 56, 44, 12


class Bar(NamedTuple):
    """One horizontal bar.

    Attributes:
        label: to its left.
        parts: lengths one behind the other, each with a class of the style sheet and a hint.
        note: to its right.
    """

    label: str
    parts: Sequence[tuple[float, str, str]]
    note: str


class Line(NamedTuple):
    """One line of a chart.

    Attributes:
        name: for the hint of its points.
        style: classes of the style sheet.
        points: x and y.
    """

    name: str
    style: str
    points: Sequence[tuple[float, float]]


def bar_chart(bars: Sequence[Bar]) -> str:
    """Horizontal bars over one scale that begins at 0."""
    most = max((sum(part[0] for part in bar.parts) for bar in bars), default=0.0) or 1.0
    scale = (_WIDTH - _LABELS - _NOTES) / most
    height = len(bars) * (_BAR + _GAP) + _GAP
    drawn = "".join(_bar(bar, _GAP + row * (_BAR + _GAP), scale) for row, bar in enumerate(bars))
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{drawn}</svg>'


def line_chart(lines: Sequence[Line], x_title: str, y_title: str, lowest: float = 0.0) -> str:
    """Lines with points over whole numbers of x; the y axis holds `lowest` and all values.

    Args:
        lines: at least one, with at least one point in all.
        x_title, y_title: of the axes.
        lowest: a value of y that is always shown.
    """
    xs = sorted({x for line in lines for x, _ in line.points})
    ys = [y for line in lines for _, y in line.points]
    step = _step(max(*ys, lowest) - min(*ys, lowest))
    low = math.floor(min(*ys, lowest) / step) * step
    high = max(math.ceil(max(*ys, lowest) / step) * step, low + step)
    frame = _Frame(xs[0], xs[-1], low, high)
    ticks = [low + step * number for number in range(round((high - low) / step) + 1)]
    parts = [_y_tick(frame, tick) for tick in ticks]
    parts += [_text(frame.x(x), _HEIGHT - _BOTTOM + 18, f"{x:g}", "middle") for x in xs]
    parts += [_line(frame, line) for line in lines]
    parts.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 6, x_title, "middle", "axis"))
    parts.append(_text(_LEFT, _TOP - 2, y_title, "start", "axis"))
    return f'<svg viewBox="0 -14 {_WIDTH} {_HEIGHT + 14}" role="img">{"".join(parts)}</svg>'


class _Frame(NamedTuple):
    """The ranges of both axes, and where they lie in the picture."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        width = _WIDTH - _LEFT - 24
        if self.right == self.left:
            return _LEFT + width / 2
        return _LEFT + 12 + (value - self.left) / (self.right - self.left) * (width - 12)

    def y(self, value: float) -> float:
        height = _HEIGHT - _BOTTOM - _TOP
        return _TOP + height * (1 - (value - self.low) / (self.high - self.low))


def _bar(bar: Bar, top: int, scale: float) -> str:
    return "".join(_bar_parts(bar, top, scale))


def _bar_parts(bar: Bar, top: int, scale: float) -> Iterator[str]:
    middle = top + _BAR * 0.72
    yield _text(_LABELS - 10, middle, bar.label, "end")
    left = float(_LABELS)
    for length, style, hint in bar.parts:
        width = max(length * scale, 0.0)
        shape = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}"'
        yield f'<rect class="{style}" {shape} rx="2"><title>{escape(hint)}</title></rect>'
        left += width
    yield _text(left + 8, middle, bar.note, "start", "note")


def _line(frame: _Frame, line: Line) -> str:
    places = [(frame.x(x), frame.y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(line.name)}: '
        f"{value:.3g}</title></circle>"
        for (x, y), (_, value) in zip(places, line.points, strict=True)
    )
    return f'<g class="{line.style}"><polyline points="{path}"/>{dots}</g>'


def _y_tick(frame: _Frame, value: float) -> str:
    y = frame.y(value)
    rule = f'<path class="rule" d="M{_LEFT} {y:.1f}H{_WIDTH - 12}"/>'
    return rule + _text(_LEFT - 8, y + 4, f"{value:.10g}", "end")


def _text(x: float, y: float, text: str, anchor: str, style: str = "label") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{style}" {place}>{escape(text)}</text>'


def _step(span: float) -> float:
    """A round distance that divides `span` into about five."""
    if span <= 0:
        return 0.2
    power = 10.0 ** math.floor(math.log10(span / 5))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= span / 5)
