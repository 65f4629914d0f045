"""`drop_dead_code`: calls without a reader go, inputs and everything that is read stay."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.passes.drop_dead_code import DropDeadCode
from tests.helpers.hand_made import apply, count, floats, program_of, run

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
INPUT = floats("x", "B", "T")


def dead(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Two calls of three lead nowhere."""
    torch.cos(torch.sin(tensors["x"]))
    return {"y": tensors["x"] + 1.0}


def test_a_dead_chain_goes() -> None:
    result = apply(DropDeadCode(), program_of(dead, INPUT), 2, x=X)
    assert count(result.program, torch.ops.aten.sin.default) == 0


def test_live_code_stays() -> None:
    program = program_of(lambda t: {"y": torch.sin(t["x"]) + 1.0}, INPUT)
    apply(DropDeadCode(), program, 0, x=X)


def test_an_unused_input_stays() -> None:
    program = program_of(lambda t: {"y": t["x"] + 1.0}, INPUT, floats("unused", "B"))
    result = apply(DropDeadCode(), program, 0, x=X, unused=torch.zeros(2))
    assert [spec.name for spec in result.program.graphs["main"].inputs] == ["x", "unused"]


def test_a_write_that_is_read_later_stays() -> None:
    def written(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        value = tensors["x"] * 2.0
        value.add_(1.0)
        return {"y": value}

    program = program_of(written, INPUT)
    assert torch.equal(run(DropDeadCode()(program).program, x=X)["y"], X * 2.0 + 1.0)
