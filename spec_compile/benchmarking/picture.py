"""A report of `bench` as one PNG: speed, speed-up over k, acceptance by position."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spec_compile.benchmarking.html_report import (
    name_of,
    setting_of,
    sweeps,
    without_repeated_baselines,
)
from spec_compile.benchmarking.measure import SPECULATIVE, TARGET_ONLY
from spec_compile.errors import ConfigError

_ALONE, _SPECULATIVE = "#a9b2bd", "#2563b8"
_WIDTH, _BAR, _CHART = 9.0, 0.32, 3.4  # inches
Report = dict[str, Any]
Panel = Callable[[Any, Report], None]


def require_matplotlib() -> None:
    """Raise ConfigError where pictures cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot of a .png needs matplotlib: pip install 'spec-compile[bench]', or give a name "
            "that ends in .html"
        )


def draw(report: Report, path: Path) -> None:
    """Write the picture of one report of `bench_bundles`."""
    from matplotlib.figure import Figure

    panels: list[tuple[float, Panel]] = [
        (0.8 + _BAR * len(without_repeated_baselines(report["results"])), _draw_speed)
    ]
    if sweeps(report["results"]):
        panels.append((_CHART, _draw_sweep))
    panels.append((_CHART, _draw_positions))
    heights = [height for height, _ in panels]
    figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained", dpi=150)
    axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)
    for (_, panel), axis in zip(panels, axes[:, 0], strict=True):
        panel(axis, report)
        axis.spines[["top", "right"]].set_visible(False)
    work, machine = report["workload"], report["machine"]
    figure.suptitle(
        f"{work['prompts']} prompts x {work['max_new_tokens']} tokens on {machine['cpu']}",
        fontsize="small",
    )
    figure.savefig(path, format="png")


def _draw_speed(axis: Any, report: Report) -> None:
    results = without_repeated_baselines(report["results"])
    labels = [f"{name_of(one)}, {setting_of(one, short=True)}" for one in results]
    speeds = [one["tokens_per_second"] for one in results]
    colours = [_ALONE if one["mode"] == TARGET_ONLY else _SPECULATIVE for one in results]
    bars = axis.barh(range(len(results)), speeds, color=colours)
    notes = [f"{one['tokens_per_second']:.1f} ({one['speed_up']:.2f}x)" for one in results]
    axis.bar_label(bars, notes, padding=4, fontsize="small")
    axis.set_yticks(range(len(results)), labels, fontsize="small")
    axis.invert_yaxis()
    axis.margins(x=0.18)
    axis.set_xlabel("tokens per second; grey: the target alone")


def _draw_sweep(axis: Any, report: Report) -> None:
    for index, (name, group) in enumerate(sweeps(report["results"]).items()):
        for field, style in (("speed_up", "o-"), ("predicted_speed_up", "o--")):
            points = [(one["num_speculative_tokens"], one[field]) for one in group if field in one]
            if points:
                said = name if field == "speed_up" else f"{name}, predicted"
                axis.plot(*zip(*points, strict=True), style, color=f"C{index}", label=said)
    axis.axhline(1.0, color=_ALONE)
    axis.set_xlabel("draft tokens a round (k)")
    axis.set_ylabel("speed-up")
    axis.legend(fontsize="x-small", frameon=False)


def _draw_positions(axis: Any, report: Report) -> None:
    rows = report["results"][0]["batch_size"]
    for one in report["results"]:
        if one["mode"] == SPECULATIVE and one["batch_size"] == rows:
            shares = one["acceptance_by_position"]
            said = f"{name_of(one)}, {setting_of(one, short=True)}"
            axis.plot(range(1, len(shares) + 1), shares, "o-", label=said)
    axis.set_ylim(0, 1)
    axis.set_xlabel("position of the draft token")
    axis.set_ylabel("share of rounds that kept it")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize="x-small", frameon=False)
