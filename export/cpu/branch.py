"""One node in place of several, always or where a condition holds when the graph runs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from spec_compile.export.cpu.lowering import typed


def choose(
    graph: ir.Graph,
    condition: ir.Value | None,
    node: ir.Node,
    results: Sequence[ir.Value],
    last: ir.Node,
) -> None:
    """Compute `results` by `node`; where `condition` is false, as before, in a branch.

    Args:
        graph: the graph around.
        condition: a boolean scalar; None drops the old nodes.
        node: not yet in the graph; its outputs stand for `results`.
        results: what the old nodes compute.
        last: the last of the old nodes, which computes one of `results`.
    """
    region = _region(graph, results, node)
    replaced: Sequence[ir.Value] = node.outputs
    if condition is None:
        graph.insert_after(last, node)
    else:
        outer = ir.node("If", [condition], num_outputs=len(results))
        graph.insert_after(last, outer)
        replaced = outer.outputs
    names = [value.name for value in results]
    for old, new in zip(results, replaced, strict=True):
        typed(new, old)
        inside = [(user, i) for user, i in old.uses() if user in region]
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        for user, index in inside:
            user.replace_input_with(index, old)
    ordered = [each for each in graph if each in region]
    # Nodes that move into a branch keep their inputs; nodes that go must not hold on to theirs.
    graph.remove(ordered, safe=condition is None)
    if condition is not None:
        _fill(outer, node, ordered, results)
    for name, new in zip(names, replaced, strict=True):
        new.name = name


def _fill(
    outer: ir.Node, node: ir.Node, region: Sequence[ir.Node], results: Sequence[ir.Value]
) -> None:
    for value in results:
        value.name = f"{value.name}_rows"
    for value, mine in zip(results, node.outputs, strict=True):
        mine.name = f"{value.name}_one"
    yes = ir.Graph([], list(node.outputs), nodes=[node], name="one")
    no = ir.Graph([], list(results), nodes=list(region), name="rows")
    outer.attributes["then_branch"] = ir.AttrGraph("then_branch", yes)
    outer.attributes["else_branch"] = ir.AttrGraph("else_branch", no)


def _region(graph: ir.Graph, results: Sequence[ir.Value], node: ir.Node) -> set[ir.Node]:
    """The nodes that only `results` need, without those that `node` reads from."""
    kept = {each.producer() for each in node.inputs if each is not None}
    producers = {value.producer() for value in results}
    region = {each for each in producers if each is not None}
    stack = list(region)
    while stack:
        for value in stack.pop().inputs:
            producer = value.producer() if value is not None else None
            if producer is None or producer in region or producer in kept:
                continue
            if producer.graph is graph and _only_read_by(producer, region):
                region.add(producer)
                stack.append(producer)
    return region


def _only_read_by(node: ir.Node, region: set[ir.Node]) -> bool:
    return all(
        not value.is_graph_output() and all(user in region for user, _ in value.uses())
        for value in node.outputs
    )
