"""The tables of the comparison with peers, from lines as workers write them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers.launch import Outcome
from benchmarks.peers.tables import (
    Cost,
    cost_of_speculating,
    cost_table,
    speed_table,
    tokens_per_second,
    version_lines,
)
from benchmarks.peers.task import PLAIN, SELF, SPECULATIVE
from benchmarks.peers.worker import COST, SPEED
from tests.helpers.peer_task import make_task

KINDS = ["chat", "code"]


def line(
    mode: str, seconds: float, tokens: list[int], *, prompt: int = 0, number: int = 0, **more: Any
) -> dict[str, Any]:
    given = {"mode": mode, "purpose": SPEED, "pass": number, "prompt": prompt, "rounds": None}
    return {**given, "asked": len(tokens), "seconds": seconds, "tokens": tokens, **more}


def measured() -> Outcome:
    """Plain 10 tokens/s; speculative 20 tokens/s on chat, 5 on code, one output different."""
    outcome = Outcome("A", "float32", versions={"a": "1.0"}, notes="as told")
    outcome.outputs = [
        line(PLAIN, 1.0, [7] * 10),
        line(PLAIN, 1.0, [8] * 10, prompt=1),
        line(SPECULATIVE, 0.5, [7] * 10, rounds=4),
        line(SPECULATIVE, 2.0, [9] * 10, prompt=1, rounds=6),
    ]
    return outcome


def cells(table_row: Any) -> list[str]:
    return list(table_row)


def test_tokens_per_second_is_the_median_of_passes_over_all_their_prompts() -> None:
    outcome = Outcome("A", "float32")
    for number, seconds in enumerate([1.0, 4.0, 2.0]):
        outcome.outputs += [
            line(PLAIN, seconds, [1] * 6, number=number),
            line(PLAIN, seconds, [1] * 2, prompt=1, number=number),
        ]
    assert tokens_per_second(outcome, PLAIN, [0, 1]) == pytest.approx(2.0)  # 8 tokens in 4 s
    assert tokens_per_second(outcome, PLAIN, [1]) == pytest.approx(1.0)
    assert tokens_per_second(outcome, SPECULATIVE, [0, 1]) is None


def test_speed_table_shows_both_modes_by_kind_with_ratio_and_equal_outputs() -> None:
    table = speed_table([measured()], KINDS, make_task())
    plain, speculative = map(cells, table.rows)
    assert plain == ["float32", "A", "plain", "10", "", "10", "10", "", "", ""]
    assert speculative == [
        *("float32", "A", "speculative", "8", "0.8x", "20", "5"),
        *("2", "1 of 2", ""),
    ]
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_outputs_are_compared_with_the_first_system_of_the_same_precision() -> None:
    other, int4 = measured(), measured()
    other.peer, int4.precision = "B", "int4"
    rows = [cells(row) for row in speed_table([measured(), other, int4], KINDS, make_task()).rows]
    assert [row[-1] for row in rows] == ["", "", "2 of 2", "1 of 2", "", ""]


def test_a_missing_peer_is_one_row_with_its_reason() -> None:
    absent = Outcome("B", "int8", reason="no environment | here")
    rows = [cells(row) for row in speed_table([absent], KINDS, make_task()).rows]
    assert len(rows) == 1
    assert rows[0][3] == "not available: no environment \\| here"
    assert "no environment" in cells(cost_table([absent], make_task()).rows[0])[5]
    assert version_lines([absent]) == []


def test_a_mode_given_up_on_the_way_has_no_figures() -> None:
    outcome = measured()
    outcome.skipped[SPECULATIVE] = "vocabularies differ"
    rows = [cells(row) for row in speed_table([outcome], KINDS, make_task()).rows]
    assert rows[0][3] == "10"
    assert rows[1][3] == "not available: vocabularies differ"


def with_costs(rounds: tuple[int | None, int | None]) -> Outcome:
    """5 and 15 tokens: plain 10 ms a token, self-speculation 60 ms a round of 5."""
    outcome = Outcome("A", "float32", calls={1: [9.0], 5: [11.0, 12.0, 90.0]})
    for mode, unit in ((PLAIN, 0.010), (SELF, 0.012)):
        for asked, told in zip((5, 15), rounds, strict=True):
            seconds = 0.1 + unit * asked
            shown = told if mode == SELF else None
            one = line(mode, seconds, [1] * asked, asked=asked, purpose=COST, rounds=shown)
            outcome.outputs.append(one)
    return outcome


@pytest.mark.parametrize("rounds", [(1, 3), (2, 4), (None, None)])
def test_cost_of_speculating_leaves_prompt_and_first_round_out(
    rounds: tuple[int | None, int | None],
) -> None:
    cost = cost_of_speculating(with_costs(rounds), make_task())
    assert isinstance(cost, Cost)
    assert cost.step_ms == pytest.approx(10.0)
    assert cost.round_ms == pytest.approx(60.0)
    assert cost.ideal_ms == pytest.approx(4 * 10.0 + 12.0)
    row = cells(cost_table([with_costs(rounds)], make_task()).rows[0])
    assert row[2:] == ["9", "12", "10", "60", "52", "0.87"]


def test_rounds_that_accepted_less_are_counted_as_the_peer_counts_them() -> None:
    cost = cost_of_speculating(with_costs((1, 5)), make_task())
    assert isinstance(cost, Cost)
    assert cost.round_ms == pytest.approx(30.0)


@pytest.mark.parametrize("what", [SELF, "calls"])
def test_cost_table_tells_why_there_is_no_ratio(what: str) -> None:
    outcome = with_costs((1, 3))
    outcome.skipped[what] = "cannot"
    row = cells(cost_table([outcome], make_task()).rows[0])
    assert "not available: cannot" in row
    assert len(row) == len(cost_table([outcome], make_task()).columns)


def test_a_table_in_markdown_names_its_conditions() -> None:
    text = speed_table([measured()], KINDS, make_task(temperature=1.0)).to_markdown()
    title, _, head, rule, *rows = text.splitlines()
    assert "temperature 1" in title and "k = 4" in title and "2 threads" in title
    assert head.count("|") == rule.count("|") == rows[0].count("|")
    assert version_lines([measured()]) == ["- A, float32: as told; a 1.0"]
