"""Fold a bias that is added to the logits into the head, as the bias of its product.

Some models keep one beside their head (`final_logits_bias`). The passes that cut the head, or move
gathers of rows in front of it, look for a product that ends in the logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from spec_compile.graph_weights import new_weights
from spec_compile.passes.base import Mismatch, Pass, PassResult
from spec_compile.passes.rewrite import insert_call, is_call
from spec_compile.program import Graph, Program

aten = torch.ops.aten
_NAME = "logits_bias"


@dataclass(frozen=True)
class Match:
    """add(linear(hidden, weight), bias), by name of the sum; `bias` is [V]."""

    node: str
    bias: Tensor


class FoldLogitsBias(Pass):
    """Make a stored bias on the logits the bias of the head."""

    name = "fold_logits_bias"

    def call(self, program: Program) -> PassResult:
        total, mismatches, names = 0, list[Mismatch](), dict(program.weight_names)
        for name, graph in program.graphs.items():
            match = _match(graph)
            if isinstance(match, Mismatch):
                mismatches.append(match)
            elif match is not None:
                program = program.with_graph(name, _fold(graph, match))
                names.setdefault(match.bias.data_ptr(), f"{name}.{_NAME}")
                total += 1
        if total:
            program = program.with_weight_names(names)
        return PassResult(program, total, tuple(mismatches))


def _match(graph: Graph) -> Match | Mismatch | None:
    """The sum that ends in the logits, why it cannot be folded, or None where there is none."""
    places = [index for index, spec in enumerate(graph.outputs) if spec.name == "logits"]
    node = graph.nodes[-1].args[0][places[0]] if places else None  # type: ignore[index]
    if not is_call(node, aten.add.Tensor):
        return None
    assert isinstance(node, fx.Node)
    product, bias = node.args[:2]
    if not is_call(product, aten.linear.default) or len(product.args) > 2:  # type: ignore[union-attr]
        return Mismatch("what is added to is no product without a bias", node.name)
    stored = _stored(graph, bias)
    rows = node.meta["val"].shape[-1]
    if stored is None or stored.numel() != rows or stored.shape[-1] != rows:
        return Mismatch("what is added is no stored bias of the vocabulary's size", node.name)
    # A copy, because weights are known by their address, and the stored one has another shape.
    bias = stored.detach().clone().reshape(-1)
    return Match(node.name, torch.nn.Parameter(bias, requires_grad=False))


def _stored(graph: Graph, node: object) -> Tensor | None:
    exported = graph.exported
    targets = {spec.arg.name: spec.target for spec in exported.graph_signature.input_specs}
    target = targets.get(getattr(node, "name", None))
    if target is None:
        return None
    found = exported.state_dict.get(target, exported.constants.get(target))
    return found if isinstance(found, Tensor) else None


def _fold(graph: Graph, match: Match) -> Graph:
    extended, names = new_weights(graph, {_NAME: match.bias})

    def rewrite(copied: fx.Graph) -> int:
        nodes = {node.name: node for node in copied.nodes}
        node = nodes[match.node]
        product = node.args[0]
        assert isinstance(product, fx.Node)
        with copied.inserting_before(node):
            folded = insert_call(
                copied, aten.linear.default, (*product.args[:2], nodes[names[_NAME]])
            )
        node.replace_all_uses_with(folded)
        copied.erase_node(node)
        copied.eliminate_dead_code()
        return 1

    return extended.edited(rewrite)[0]
