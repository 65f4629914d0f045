"""`remove_no_ops`: what gives back its input goes, what only looks so stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spec_compile.passes.remove_no_ops import RemoveNoOps
from tests.helpers.hand_made import Function, apply, count, floats, program_of

aten = torch.ops.aten
X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
INPUT = floats("x", "B", "T", 4)
Edit = Callable[[Tensor], Tensor]

NO_OPS: dict[str, Edit] = {
    "full slice": lambda x: x[:, 0:],
    "same-shape view": lambda x: x.view(x.shape[0], x.shape[1], 4),
    "same-shape reshape": lambda x: x.reshape(x.shape[0], -1, 4),
    "same-shape expand": lambda x: x.expand(-1, -1, 4),
    "copy": lambda x: x.clone(),
    "product by one": lambda x: x * 1.0,
    "dropout at inference": lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
}
OPS: dict[str, Edit] = {
    "sum over one type of another": lambda x: x.sum(-1, dtype=torch.float64),
    "slice that drops a column": lambda x: x[:, :, 1:],
    "slice with a step": lambda x: x[:, :, ::2],
    "view to another shape": lambda x: x.view(x.shape[0], -1),
    "broadcast": lambda x: x[:, :, :1].expand(-1, -1, 4),
    "product by two": lambda x: x * 2.0,
    "transpose of equal sizes": lambda x: x @ torch.ones(4, 4).triu().transpose(0, 1),
}


@pytest.mark.parametrize("name", NO_OPS)
def test_no_ops_go(name: str) -> None:
    edit = NO_OPS[name]
    program = program_of(lambda t: {"y": torch.sin(edit(torch.cos(t["x"])))}, INPUT)
    result = apply(RemoveNoOps(), program, 1, x=X)
    calls = [node for node in result.program.graphs["main"].nodes if node.op == "call_function"]
    (sine,) = [node for node in calls if node.target is aten.sin.default]
    assert sine.args[0].target is aten.cos.default  # type: ignore[union-attr]


@pytest.mark.parametrize("name", OPS)
def test_look_alikes_stay(name: str) -> None:
    program = program_of(lambda t: {"y": OPS[name](t["x"])}, INPUT)
    apply(RemoveNoOps(), program, 0, x=X)


def test_casts_to_the_same_type_go_with_their_assertions() -> None:
    program = program_of(lambda t: {"y": t["x"].to(torch.float32) + 1.0}, INPUT)
    assert count(program, aten._assert_tensor_metadata.default) == 1
    result = apply(RemoveNoOps(), program, 2, x=X)
    assert count(result.program, aten.to.dtype) == 0


def test_casts_to_another_type_stay_without_their_assertions() -> None:
    program = program_of(lambda t: {"y": t["x"].to(torch.float64) + 1.0}, INPUT)
    result = apply(RemoveNoOps(), program, 1, x=X)
    assert count(result.program, aten.to.dtype) == 1


def test_chains_go_in_one_run() -> None:
    program = program_of(lambda t: {"y": (t["x"].clone() * 1.0)[:, 0:] + 1.0}, INPUT)
    apply(RemoveNoOps(), program, 3, x=X)


def test_an_output_may_become_an_input() -> None:
    program = program_of(lambda t: {"y": t["x"].clone(), "z": t["x"] + 1.0}, INPUT)
    apply(RemoveNoOps(), program, 1, x=X)


def test_a_copy_that_lays_out_memory_stays() -> None:
    """A `view` behind a transpose needs the copy in between."""
    program = program_of(
        lambda t: {"y": t["x"].transpose(1, 2).contiguous().view(t["x"].shape[0], -1)}, INPUT
    )
    apply(RemoveNoOps(), program, 0, x=X)


def write_to_copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    source = tensors["x"] * 2.0
    copy = source.clone()
    copy.add_(1.0)
    return {"y": copy, "z": source + 0.0}


def write_to_source(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    source = tensors["x"] * 2.0
    copy = source.clone()
    source.add_(1.0)
    return {"y": copy, "z": source}


@pytest.mark.parametrize("written", [write_to_copy, write_to_source])
def test_a_graph_that_writes_in_place_keeps_its_copies_and_says_why(written: Function) -> None:
    result = apply(RemoveNoOps(), program_of(written, INPUT), 0, x=X)
    assert [each.reason for each in result.mismatches] == [
        "aten.add_.Tensor writes in place, so the graph stays as it is"
    ]
