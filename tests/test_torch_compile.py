"""`torch.compile(backend="spec_compile")`: the same numbers, and a count of what was rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spec_compile.errors import ConfigError
from spec_compile.torch_compile import Report, compile_module
from tests.helpers.captured import eager_model, random_tokens

Options = dict[str, str | int | bool | Callable[..., Any]]


def test_torch_finds_it_by_name() -> None:
    from torch._dynamo.backends.registry import list_backends, lookup_backend

    assert "spec_compile" in list_backends()
    assert lookup_backend("spec_compile") is compile_module


@pytest.mark.parametrize("then", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_llama_computes_what_it_did(then: str) -> None:
    model, reports = eager_model("llama"), list[Report]()
    options: Options = {"then": then, "report": reports.append}
    compiled = torch.compile(model, backend="spec_compile", options=options, fullgraph=True)
    for length in (5, 9):
        tokens = random_tokens(2, length)
        with torch.no_grad():
            expected = model(input_ids=tokens, use_cache=False).logits
            actual = compiled(input_ids=tokens, use_cache=False).logits
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert reports
    for report in reports:
        assert list(report.rewrites) == ["remove_no_ops", "merge_duplicates", "drop_dead_code"]
        assert report.rewrites["remove_no_ops"] > 0
        assert report.mismatches == ()


class Repeating(nn.Module):
    """Two sums that are one, a copy of an input, and equal outputs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        left, right = (x + 1.0).sum(-1), (x + 1.0).sum(-1)
        return left * right, x.clone(), x * 2.0, x * 2.0


def test_outputs_stay_apart_from_inputs_and_from_each_other() -> None:
    reports = list[Report]()
    options: Options = {"then": "eager", "report": reports.append}
    compiled = torch.compile(Repeating(), backend="spec_compile", options=options)
    x = torch.arange(6.0).reshape(2, 3)
    expected = Repeating()(x)
    actual = compiled(x)
    torch.testing.assert_close(actual, expected)
    assert reports[0].rewrites == {"remove_no_ops": 1, "merge_duplicates": 3, "drop_dead_code": 0}
    addresses = {tensor.data_ptr() for tensor in (x, *actual)}
    assert len(addresses) == 5


def test_gradients_flow() -> None:
    options: Options = {"then": "eager", "report": lambda _: None}
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    compiled = torch.compile(model, backend="spec_compile", options=options)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    actual = torch.autograd.grad(compiled(x).sum(), list(model.parameters()))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("options", [{"then": "tvm"}, {"than": "eager"}])
def test_unknown_options_are_refused(options: dict[str, str]) -> None:
    module = torch.fx.symbolic_trace(nn.Tanh())
    with pytest.raises(ConfigError, match=r"takes the options then \(inductor or eager\)"):
        compile_module(module, [torch.ones(1)], options=options)
