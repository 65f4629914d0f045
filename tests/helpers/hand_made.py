"""Small graphs for tests of passes: a function of named tensors, traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spec_compile.passes.base import Pass, PassResult
from spec_compile.program import Composite, Graph, Program, TensorSpec, as_function, call, trace

Function = Callable[[dict[str, Tensor]], dict[str, Tensor]]


class HandMade(Composite):
    """`function` of the inputs and weights, by name."""

    def __init__(
        self, function: Function, inputs: tuple[TensorSpec, ...], weights: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.function, self.inputs = function, inputs
        self.weights = nn.ParameterDict(dict(weights))

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.function({**tensors, **self.weights})


def floats(name: str, *shape: int | str) -> TensorSpec:
    """A float32 input."""
    return TensorSpec(name, torch.float32, shape)


def integers(name: str, *shape: int | str) -> TensorSpec:
    """An int64 input."""
    return TensorSpec(name, torch.int64, shape)


def hand_made(function: Function, *inputs: TensorSpec, **weights: Tensor) -> Graph:
    """The graph of `function`; B is 1..8 and T 1..16."""
    return trace(HandMade(function, inputs, weights), batch_size=8, max_length=16)


def program_of(function: Function, *inputs: TensorSpec, **weights: Tensor) -> Program:
    """A program of one graph called `main`."""
    return Program({"main": hand_made(function, *inputs, **weights)})


def run(program: Program, **tensors: Tensor) -> dict[str, Tensor]:
    """Outputs of the graph `main` by name."""
    graph = program.graphs["main"]
    with torch.no_grad():
        return call(graph, as_function(graph), tensors)


def count(program: Program, target: Any, name: str = "main") -> int:
    """How many nodes call `target`."""
    return sum(node.target is target for node in program.graphs[name].nodes)


def apply(each: Pass, program: Program, rewrites: int, **tensors: Tensor) -> PassResult:
    """Run a pass and check what holds for every one of them.

    It makes exactly `rewrites` changes, leaves its input as it was, computes the same outputs for
    `tensors` to the last bit, reports a change if there is one, and does nothing the second time.
    """
    before, hash_before = run(program, **tensors), program.structural_hash()
    result = each(program)
    assert result.rewrites == rewrites
    assert program.structural_hash() == hash_before
    assert (result.program.structural_hash() != hash_before) == (rewrites > 0)
    for name, value in run(result.program, **tensors).items():
        assert torch.equal(value, before[name]), name
    again = each(result.program)
    assert again.rewrites == 0
    assert again.program.structural_hash() == result.program.structural_hash()
    return result
