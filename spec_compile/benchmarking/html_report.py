"""A report of `bench` as one HTML page: no script, no file beside it, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from spec_compile.benchmarking.charts import Bar, Line, bar_chart, line_chart
from spec_compile.benchmarking.measure import SPECULATIVE, TARGET_ONLY
from spec_compile.benchmarking.style import STYLE

_NUM_COLOURS = 6
Result = dict[str, Any]


def render(report: dict[str, Any]) -> str:
    """The page of one report of `bench_bundles`."""
    results = report["results"]
    sections = [
        _summary(report),
        _section("Tokens per second", _SPEED_TEXT, _speed(results)),
        _section("Speed-up by number of draft tokens", _SWEEP_TEXT, _sweep(results)),
        _section("Where a round's time goes", _PHASES_TEXT, _phases(results)),
        _section("Acceptance by position", _POSITIONS_TEXT, _positions(results)),
        _section("Accepted draft tokens per round", _HISTOGRAM_TEXT, _histogram(results)),
        _section("All figures", "", _table(results)),
        _section("Where it was measured", "", _environment(report)),
    ]
    body = "".join(sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>spec-compile bench</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


_SPEED_TEXT = (
    "Emitted tokens over wall time, prompts included; the median of the measured passes. Grey: the "
    "target alone on the same engine."
)
_SWEEP_TEXT = (
    "Against target-only decoding of the same bundle. Solid: measured. Dashed: foreseen from the "
    "laws of both models along the target's text and from single calls."
)
_PHASES_TEXT = "Medians of graph calls after the prompt's, and the mean of what the host adds."
_POSITIONS_TEXT = "Share of the rounds that kept their first, second, .. draft token."
_HISTOGRAM_TEXT = (
    "Share of the rounds that kept 0, 1, .. k draft tokens, from left to right; tokens per call."
)


def _summary(report: dict[str, Any]) -> str:
    speculative = [one for one in report["results"] if one["mode"] != TARGET_ONLY]
    best = max(speculative, key=lambda one: float(one["speed_up"]))
    work, machine = report["workload"], report["machine"]
    models = report["bundles"][best["bundle"]]["models"]
    pair = f"{models['target']} with {models.get('draft', 'no draft')}"
    cards = [
        (f"{best['speed_up']:.2f}x", f"best speed-up: {name_of(best)}, {setting_of(best)}"),
        (f"{best['tokens_per_second']:.0f}", "tokens per second there"),
        (f"{best['block_efficiency']:.2f}", "tokens per target call there"),
        (f"{best['ttft_ms']:.0f} ms", "to the first token there"),
    ]
    shown = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(text)}</span></div>'
        for value, text in cards
    )
    facts = (
        f"{work['prompts']} prompts x {work['max_new_tokens']} tokens, medians of {work['repeat']} "
        f"interleaved passes on {machine['cpu']}"
    )
    return (
        f"<header><h1>{escape(pair)}</h1><p>{escape(facts)}</p></header>"
        f'<div class="cards">{shown}</div>'
    )


def _section(title: str, text: str, content: str) -> str:
    if not content:
        return ""
    said = f"<p>{escape(text)}</p>" if text else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def _speed(results: Sequence[Result]) -> str:
    charts = []
    for setting, group in _by_setting(results):
        bars = [
            Bar(
                name_of(one),
                [
                    (
                        one["tokens_per_second"],
                        "alone" if one["mode"] == TARGET_ONLY else "c0",
                        f"{one['tokens_per_second']:.1f} tokens/s",
                    )
                ],
                f"{one['tokens_per_second']:.1f} ({one['speed_up']:.2f}x)",
            )
            for one in without_repeated_baselines(group)
        ]
        charts.append(f"<h3>{escape(setting)}</h3>{bar_chart(bars)}")
    return "".join(charts)


def _sweep(results: Sequence[Result]) -> str:
    """Speed-up over k for what was measured at several k."""
    lines: list[Line] = []
    names: list[tuple[str, str]] = []
    for name, group in sweeps(results).items():
        colour = f"c{len(names) % _NUM_COLOURS}"
        names.append((colour, name))
        for field, style in (("speed_up", "line"), ("predicted_speed_up", "line dashed")):
            points = [(one["num_speculative_tokens"], one[field]) for one in group if field in one]
            if points:
                said = f"{name}, {'predicted' if 'dashed' in style else 'measured'}"
                lines.append(Line(said, f"{style} {colour}", points))
    if not lines:
        return ""
    return line_chart(lines, "draft tokens a round (k)", "speed-up", 1.0) + _legend(names)


def sweeps(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results by k, named by what else they share, where several k were measured."""
    series: dict[str, list[Result]] = {}
    for one in results:
        if one["mode"] == SPECULATIVE:
            series.setdefault(f"{kind_of(one)}, {setting_of(one)}", []).append(one)
    return {
        name: sorted(group, key=lambda one: int(one["num_speculative_tokens"]))
        for name, group in series.items()
        if len({one["num_speculative_tokens"] for one in group}) > 1
    }


def _phases(results: Sequence[Result]) -> str:
    colours = {"draft": "c1", "verify": "c0", "step": "c0", "target": "alone", "host": "c3"}
    bars = []
    for one in without_repeated_baselines(results):
        phases = one["phases_ms"]
        times = {graph: call["median"] for graph, call in phases["calls"].items()}
        times["host"] = phases["host"]
        parts = [(ms, colours.get(part, "c2"), f"{part} {ms:.2f} ms") for part, ms in times.items()]
        total = sum(times.values())
        bars.append(Bar(f"{name_of(one)}, {setting_of(one, short=True)}", parts, f"{total:.2f} ms"))
    legend = [("c1", "draft"), ("c0", "verify or step"), ("alone", "target"), ("c3", "host")]
    return bar_chart(bars) + _legend(legend)


def _positions(results: Sequence[Result]) -> str:
    """A chart for each temperature, of the first batch size: acceptance does not hang on it."""
    charts = []
    first = [one for one in results if one["batch_size"] == results[0]["batch_size"]]
    for setting, group in _by_setting(first):
        lines: list[Line] = []
        names: list[tuple[str, str]] = []
        for one in group:
            if one["mode"] == SPECULATIVE:
                colour = f"c{len(names) % _NUM_COLOURS}"
                names.append((colour, name_of(one)))
                points = [(i + 1.0, share) for i, share in enumerate(one["acceptance_by_position"])]
                lines.append(Line(name_of(one), f"line {colour}", points))
        chart = line_chart(lines, "position of the draft token", "kept", 0.0)
        charts.append(f"<h3>{escape(setting)}</h3>{chart}{_legend(names)}")
    return "".join(charts)


def _histogram(results: Sequence[Result]) -> str:
    bars = []
    for one in results:
        counts, rounds = one["acceptance_histogram"], one["num_rounds"]
        if one["mode"] != SPECULATIVE or one["batch_size"] != results[0]["batch_size"]:
            continue
        most = max(len(counts) - 1, 1)
        parts = [
            (count / rounds, f"s{round(4 * kept / most)}", f"{kept} kept: {count / rounds:.1%}")
            for kept, count in enumerate(counts)
        ]
        label = f"{name_of(one)}, {setting_of(one, short=True)}"
        bars.append(Bar(label, parts, f"{one['block_efficiency']:.2f} tokens"))
    return bar_chart(bars) if bars else ""


def _table(results: Sequence[Result]) -> str:
    heads = (
        "bundle|mode|rows|temp.|tokens/s|speed-up|predicted|first token ms|"
        "token ms p50|p90|p99|tokens a call|accepted"
    ).split("|")
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(one)) + "</tr>"
        for one in results
    )
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _cells(one: Result) -> Iterator[str]:
    yield from (Path(one["bundle"]).name, _mode(one))
    yield from (str(one["batch_size"]), f"{one['temperature']:g}")
    yield f"{one['tokens_per_second']:.1f}"
    yield f"{one['speed_up']:.2f}x"
    yield f"{one['predicted_speed_up']:.2f}x" if "predicted_speed_up" in one else ""
    yield f"{one['ttft_ms']:.1f}"
    yield from (f"{one['tpot_ms'][name]:.2f}" for name in ("median", "p90", "p99"))
    yield f"{one['block_efficiency']:.2f}"
    yield f"{one['acceptance_rate']:.2f}" if one["num_draft_tokens"] else ""


def _environment(report: dict[str, Any]) -> str:
    machine = report["machine"]
    rows = [
        ("processor", f"{machine['cpu']}, {machine['usable_cores']} cores"),
        ("threads", str(machine["num_threads"])),
        ("load average at the end", f"{machine['load_average']:.1f}")
        if machine["load_average"] is not None
        else ("load average at the end", "unknown"),
        ("system", machine["system"]),
        ("versions", ", ".join(f"{name} {value}" for name, value in report["versions"].items())),
    ]
    for path, bundle in report["bundles"].items():
        config = bundle["config"]
        weights = config["quantize"] or config["dtype"]
        said = f"{config['backend']}, {weights}, capacity {config['max_length']}"
        if bundle.get("peak_memory_bytes"):
            said += f", peak memory {bundle['peak_memory_bytes'] / 1e6:.0f} MB"
        rows.append((Path(path).name, said))
    cells = "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    return f'<table class="facts">{cells}</table>'


def _legend(names: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<span><i class="{c}"></i>{escape(name)}</span>' for c, name in names)
    return f'<div class="legend">{items}</div>'


def _by_setting(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    groups: dict[str, list[Result]] = {}
    for one in results:
        groups.setdefault(setting_of(one), []).append(one)
    yield from groups.items()


def without_repeated_baselines(results: Sequence[Result]) -> list[Result]:
    """All speculative results, and of each setting the first bundle's target-only one."""
    seen: set[str] = set()
    kept = []
    for one in results:
        if one["mode"] == TARGET_ONLY:
            if setting_of(one) in seen:
                continue
            seen.add(setting_of(one))
        kept.append(one)
    return kept


def name_of(one: Result) -> str:
    """What was measured, for a label."""
    if one["mode"] == TARGET_ONLY:
        return "target alone"
    return f"{kind_of(one)}, k = {one['num_speculative_tokens']}"


def kind_of(one: Result) -> str:
    """Rule, number of drafts, fusion and mode."""
    drafts = f" x{one['num_drafts']}" if one["num_drafts"] > 1 else ""
    note = "" if one["exact"] else " (approximate)"
    mode = "" if one["mode"] == SPECULATIVE else f" {one['mode']}"
    return f"{one['rule']}{drafts}{note}, {one['fusion']}{mode}"


def _mode(one: Result) -> str:
    return name_of(one)


def setting_of(one: Result, *, short: bool = False) -> str:
    """Temperature and rows."""
    rows = one["batch_size"]
    if short:
        return f"T {one['temperature']:g}, {rows} row{'s' if rows > 1 else ''}"
    return f"temperature {one['temperature']:g}, {rows} row{'s' if rows > 1 else ''}"
