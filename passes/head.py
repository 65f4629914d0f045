"""The head of a captured model: the product that ends in its logits, found and taken off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from spec_compile.passes.base import Mismatch
from spec_compile.passes.rewrite import is_call, is_pointwise
from spec_compile.program import Graph

HIDDEN = "hidden"
_LINEAR = torch.ops.aten.linear.default


@dataclass(frozen=True)
class Head:
    """pointwise(...(linear(hidden, weight, bias))).

    Args:
        weight: [V, hidden].
        bias: [V] or None.
        pointwise: operators on logits with their further arguments, a soft cap say.
    """

    weight: Tensor
    bias: Tensor | None
    pointwise: tuple[tuple[Any, tuple[Any, ...]], ...]

    def rows(self, token_ids: Tensor) -> Head:
        """This head for the tokens `token_ids` [N] alone."""
        bias = None if self.bias is None else self.bias[token_ids]
        return replace(self, weight=self.weight[token_ids], bias=bias)

    def finish(self, logits: Tensor) -> Tensor:
        """What follows the product."""
        for operator, arguments in self.pointwise:
            logits = operator(logits, *arguments)
        return logits


def find_head(graph: Graph) -> Head | Mismatch:
    """The head of a captured model, or why it has none that can be taken apart."""
    chain = _chain(graph.exported.graph, _place(graph))
    if isinstance(chain, Mismatch):
        return chain
    linear, pointwise = chain
    weights = [_weight(graph, node) for node in linear.args[1:]]
    if any(weight is None for weight in weights):
        return Mismatch("the head's weight is computed, not stored", linear.name)
    return Head(
        weight=weights[0],  # type: ignore[arg-type]
        bias=weights[1] if len(weights) > 1 else None,
        pointwise=tuple((node.target, node.args[1:]) for node in pointwise),
    )


def take_head_off(graph: Graph) -> Graph:
    """A model with its last states, `hidden` [B, T, H], as an output in the place of `logits`.

    Only for a graph in which `find_head` found one.
    """
    place = _place(graph)

    def rewrite(copied: fx.Graph) -> int:
        chain = _chain(copied, place)
        assert not isinstance(chain, Mismatch)
        output = next(node for node in copied.nodes if node.op == "output")
        results = list(output.args[0])
        results[place] = chain[0].args[0]
        output.args = (tuple(results),)
        copied.eliminate_dead_code()
        return 1

    headless, _ = graph.edited(rewrite)
    output = next(node for node in headless.nodes if node.op == "output")
    width = int(output.args[0][place].meta["val"].shape[-1])  # type: ignore[index, union-attr]
    specs = list(graph.outputs)
    specs[place] = replace(specs[place], name=HIDDEN, shape=(*specs[place].shape[:-1], width))
    return replace(headless, outputs=tuple(specs))


def _place(graph: Graph) -> int:
    return [spec.name for spec in graph.outputs].index("logits")


def _chain(graph: fx.Graph, place: int) -> tuple[fx.Node, tuple[fx.Node, ...]] | Mismatch:
    """The head's product and what follows it, in order."""
    output = next(node for node in graph.nodes if node.op == "output")
    node: Any = output.args[0][place]
    pointwise: list[fx.Node] = []
    while not is_call(node, _LINEAR):
        if not is_pointwise(node):
            return Mismatch(f"{node.target} in front of the logits may mix tokens", node.name)
        pointwise.append(node)
        node = node.args[0]
    return node, tuple(reversed(pointwise))


def _weight(graph: Graph, node: Any) -> Tensor | None:
    specs = graph.exported.graph_signature.input_specs
    targets = {spec.arg.name: spec.target for spec in specs}
    weights: Mapping[str, Tensor] = graph.exported.state_dict
    return weights.get(targets.get(getattr(node, "name", None)) or "")
