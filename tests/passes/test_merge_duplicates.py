"""`merge_duplicates`: one call for equal calls, and only for equal ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spec_compile.passes.merge_duplicates import MergeDuplicates
from tests.helpers.hand_made import Function, apply, count, floats, program_of

aten = torch.ops.aten
X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
INPUT = floats("x", "B", "T")


def test_equal_calls_become_one() -> None:
    program = program_of(lambda t: {"y": torch.sin(t["x"]) + torch.sin(t["x"])}, INPUT)
    result = apply(MergeDuplicates(), program, 1, x=X)
    assert count(result.program, aten.sin.default) == 1


def test_equal_chains_become_one_in_one_run() -> None:
    program = program_of(
        lambda t: {"y": torch.cos(torch.sin(t["x"])) * torch.cos(torch.sin(t["x"]))}, INPUT
    )
    apply(MergeDuplicates(), program, 2, x=X)


def test_both_outputs_may_become_one_node() -> None:
    program = program_of(lambda t: {"y": torch.sin(t["x"]), "z": torch.sin(t["x"])}, INPUT)
    result = apply(MergeDuplicates(), program, 1, x=X)
    assert [spec.name for spec in result.program.graphs["main"].outputs] == ["y", "z"]


def test_other_arguments_are_another_call() -> None:
    program = program_of(lambda t: {"y": torch.sin(t["x"]) + torch.cos(t["x"])}, INPUT)
    apply(MergeDuplicates(), program, 0, x=X)


def test_one_and_true_and_one_point_zero_differ() -> None:
    whole = TensorsOf((1, 1.0, True))
    program = program_of(whole, INPUT)
    result = apply(MergeDuplicates(), program, 0, x=X)
    assert [spec.dtype for spec in result.program.graphs["main"].outputs] == whole.dtypes


class TensorsOf:
    """Tensors filled with the same number, written in several types."""

    def __init__(self, values: tuple[int | float | bool, ...]) -> None:
        self.values = values
        self.dtypes = [torch.full((2,), value).dtype for value in values]

    def __call__(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"y{i}": torch.full((2,), value) for i, value in enumerate(self.values)}


def test_keyword_arguments_count() -> None:
    program = program_of(
        lambda t: {
            "y": torch.full((2,), 1.0, dtype=torch.float32),
            "z": torch.full((2,), 1.0, dtype=torch.float64),
        },
        INPUT,
    )
    apply(MergeDuplicates(), program, 0, x=X)


def test_random_calls_are_never_merged() -> None:
    program = program_of(lambda t: {"y": torch.rand_like(t["x"]) - torch.rand_like(t["x"])}, INPUT)
    assert MergeDuplicates()(program).rewrites == 0


def read_around_a_write(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    value = tensors["x"] * 2.0
    before = torch.sin(value)
    value.add_(1.0)
    return {"before": before, "after": torch.sin(value)}


def write_to_one_of_two(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    first, second = torch.zeros(2), torch.zeros(2)
    first.add_(1.0)
    return {"first": first, "second": second + tensors["x"].sum() * 0.0}


@pytest.mark.parametrize("written", [read_around_a_write, write_to_one_of_two])
def test_a_graph_that_writes_in_place_stays_and_says_why(written: Function) -> None:
    result = apply(MergeDuplicates(), program_of(written, INPUT), 0, x=X)
    assert [each.reason for each in result.mismatches] == [
        "aten.add_.Tensor writes in place, so the graph stays as it is"
    ]
