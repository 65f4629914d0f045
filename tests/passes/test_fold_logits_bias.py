"""`fold_logits_bias`: a stored bias on the logits goes into the head; others stay and say why."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.passes.fold_logits_bias import FoldLogitsBias
from spec_compile.passes.head import Head, find_head
from spec_compile.program import Program
from tests.helpers.hand_made import Function, count, floats, program_of, run

aten = torch.ops.aten
V = 6
X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
INPUT = floats("x", "B", "T", 4)
WEIGHTS = {
    "head": torch.randn(V, 4, generator=torch.Generator().manual_seed(1)),
    "bias": torch.randn(1, V, generator=torch.Generator().manual_seed(2)),
    "one": torch.randn(1, 1, generator=torch.Generator().manual_seed(3)),
    "own": torch.randn(V, generator=torch.Generator().manual_seed(4)),
}


def linear(t: dict[str, Tensor], *bias: str) -> Tensor:
    return torch.nn.functional.linear(t["x"], t["head"], *(t[name] for name in bias))


def folded(function: Function, rewrites: int) -> tuple[Program, list[str]]:
    """The result and the reasons of near misses, checked: count, numbers, second run."""
    program = program_of(function, INPUT, **WEIGHTS)
    before, hash_before = run(program, x=X), program.structural_hash()
    result = FoldLogitsBias()(program)
    assert result.rewrites == rewrites
    assert program.structural_hash() == hash_before
    for name, value in run(result.program, x=X).items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-6)
    assert FoldLogitsBias()(result.program).rewrites == 0
    return result.program, [each.reason for each in result.mismatches]


def test_the_bias_becomes_the_head_s() -> None:
    program, reasons = folded(lambda t: {"logits": linear(t) + t["bias"]}, 1)
    assert count(program, aten.add.Tensor) == 0
    head = find_head(program.graphs["main"])
    assert isinstance(head, Head) and head.bias is not None
    assert torch.equal(head.bias, WEIGHTS["bias"][0])
    assert program.weight_names[head.bias.data_ptr()] == "main.logits_bias"
    assert reasons == []


def test_a_head_that_has_a_bias_keeps_both() -> None:
    _, reasons = folded(lambda t: {"logits": linear(t, "own") + t["bias"]}, 0)
    assert reasons == ["what is added to is no product without a bias"]


def test_what_is_no_bias_of_the_vocabulary_stays() -> None:
    wrong = "what is added is no stored bias of the vocabulary's size"
    for other in (lambda t: t["one"], lambda t: t["bias"] * 2):
        _, reasons = folded(lambda t, other=other: {"logits": linear(t) + other(t)}, 0)  # type: ignore[misc]
        assert reasons == [wrong]


def test_other_outputs_stay() -> None:
    folded(lambda t: {"scores": linear(t) + t["bias"]}, 0)
