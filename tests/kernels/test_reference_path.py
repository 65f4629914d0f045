"""The operators without Triton: the reference, and shapes for tracing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spec_compile.kernels import ops, reference
from tests.helpers.kernel_rounds import random_round


@pytest.fixture(autouse=True)
def _without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "runs_kernels", lambda logits: False)


def test_rejection_without_kernels() -> None:
    asked = random_round(3, 2, 40)
    logits, tokens, probs, temperature, uniforms = asked.arguments()
    sampling = reference.temperature_only(temperature)
    expected = reference.accept_rejection(logits, tokens, probs, sampling, uniforms)
    found = ops.accept_rejection(*asked.arguments())
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_greedy_without_kernels() -> None:
    asked = random_round(3, 2, 40)
    best = asked.logits[:, :2].argmax(dim=-1)
    tokens, emitted = ops.accept_greedy(asked.logits, best)
    assert torch.equal(tokens[:, :2], best) and emitted.tolist() == [3, 3, 3]


class _Tail(nn.Module):
    def forward(self, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        tokens, emitted = ops.accept_rejection(*arguments)
        return tokens, emitted


def test_the_operator_is_one_node_of_an_exported_graph() -> None:
    asked = random_round(3, 2, 40)
    rows = {0: torch.export.Dim("B")}
    program = torch.export.export(
        _Tail(), asked.arguments(), dynamic_shapes={"arguments": (rows,) * 5}, strict=False
    )
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.spec_compile.accept_rejection.default in calls
    assert torch.ops.aten.softmax.int not in calls
    other = random_round(5, 2, 40, seed=1)
    found, expected = program.module()(*other.arguments()), ops.accept_rejection(*other.arguments())
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
