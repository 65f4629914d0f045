"""`prune_logits`: the row gather moves in front of the head, or says why it cannot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spec_compile.passes.prune_logits import PruneLogits
from spec_compile.passes.round import select_rows
from spec_compile.program import Program
from tests.helpers.hand_made import apply, count, floats, integers, program_of, run

aten = torch.ops.aten
WIDTH, VOCAB = 4, 6
INPUTS = (floats("hidden", "B", "T", WIDTH), integers("rows", "B", 2))
GENERATOR = torch.Generator().manual_seed(0)
WEIGHTS = {
    "head": torch.randn(VOCAB, WIDTH, generator=GENERATOR),
    "bias": torch.randn(VOCAB, generator=GENERATOR),
}
TENSORS = {
    "hidden": torch.randn(3, 5, WIDTH, generator=GENERATOR),
    "rows": torch.tensor([[0, 1], [4, 4], [2, 0]]),
}
Logits = Callable[[dict[str, Tensor]], Tensor]


def linear(tensors: dict[str, Tensor]) -> Tensor:
    return torch.nn.functional.linear(tensors["hidden"], tensors["head"])


def with_bias(tensors: dict[str, Tensor]) -> Tensor:
    return torch.nn.functional.linear(tensors["hidden"], tensors["head"], tensors["bias"])


def soft_capped(tensors: dict[str, Tensor]) -> Tensor:
    return torch.tanh(linear(tensors) / 3.0) * 3.0


HEADS: dict[str, Logits] = {"plain": linear, "bias": with_bias, "soft-capped": soft_capped}


def gathered(logits: Logits) -> Program:
    return program_of(lambda t: {"y": select_rows(logits(t), t["rows"])}, *INPUTS, **WEIGHTS)


@pytest.mark.parametrize("name", HEADS)
def test_the_head_runs_on_gathered_rows_only(name: str) -> None:
    program = gathered(HEADS[name])
    before = run(program, **TENSORS)
    result = PruneLogits()(program)
    assert result.rewrites == 1
    torch.testing.assert_close(run(result.program, **TENSORS), before, rtol=0, atol=1e-6)
    (head,) = [n for n in result.program.graphs["main"].nodes if n.target is aten.linear.default]
    assert head.args[0].target is aten.index_select.default  # type: ignore[union-attr]
    again = PruneLogits()(result.program)
    assert again.rewrites == 0
    assert again.program.structural_hash() == result.program.structural_hash()


def mixed_rows(tensors: dict[str, Tensor]) -> Tensor:
    return linear(tensors).softmax(dim=1)


def scaled_by_row(tensors: dict[str, Tensor]) -> Tensor:
    return linear(tensors) * tensors["hidden"].sum(dim=-1, keepdim=True)


REFUSED: dict[str, tuple[Logits, str]] = {
    "rows mixed": (mixed_rows, "aten.softmax.int between head and gather may mix rows"),
    "scaled by a tensor": (scaled_by_row, "aten.mul.Tensor between head and gather may mix rows"),
    "no head": (lambda t: t["hidden"], "between head and gather may mix rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_near_misses_say_why(name: str) -> None:
    logits, reason = REFUSED[name]
    result = apply(PruneLogits(), gathered(logits), 0, **TENSORS)
    assert [reason in each.reason for each in result.mismatches] == [True]


def test_logits_that_are_also_an_output_stay_whole() -> None:
    def both(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        logits = linear(tensors)
        return {"y": select_rows(logits, tensors["rows"]), "logits": logits}

    result = apply(PruneLogits(), program_of(both, *INPUTS, **WEIGHTS), 0, **TENSORS)
    assert [each.reason for each in result.mismatches] == ["other nodes use the logits too"]


def test_a_gather_of_columns_is_no_gather_of_rows() -> None:
    program = program_of(
        lambda t: {"y": linear(t).flatten(0, 1).index_select(1, t["rows"][0])}, *INPUTS, **WEIGHTS
    )
    result = apply(PruneLogits(), program, 0, **TENSORS)
    assert [each.reason for each in result.mismatches] == [
        "the gather is not one of rows of a flattened tensor"
    ]


def test_a_flattening_that_cuts_rows_is_refused() -> None:
    program = program_of(
        lambda t: {"y": linear(t).view(-1, VOCAB // 2).index_select(0, t["rows"][0])},
        *INPUTS,
        **WEIGHTS,
    )
    apply(PruneLogits(), program, 0, **TENSORS)


def test_graphs_without_a_gather_have_no_near_miss() -> None:
    program = program_of(lambda t: {"y": linear(t)}, INPUTS[0], **WEIGHTS)
    result = apply(PruneLogits(), program, 0, hidden=TENSORS["hidden"])
    assert result.mismatches == ()
    assert count(result.program, aten.linear.default) == 1
