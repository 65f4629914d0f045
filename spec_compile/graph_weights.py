"""Weights of a graph: which placeholder holds which tensor, adding some, dropping unused ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

if TYPE_CHECKING:
    from spec_compile.program import Graph


def weights_of(graph: Graph) -> dict[str, Tensor]:
    """The weights of `graph` by the names of their placeholders."""
    exported = graph.exported
    return {
        spec.arg.name: exported.state_dict[spec.target]
        for spec in exported.graph_signature.input_specs
        if spec.kind is InputKind.PARAMETER and spec.target in exported.state_dict
    }


def new_weights(graph: Graph, weights: Mapping[str, Tensor]) -> tuple[Graph, dict[str, str]]:
    """A copy of `graph` that also holds `weights`, by name, which nothing reads yet.

    Returns:
        The copy, and the names of the new placeholders.
    """
    exported, copied, lifted = graph.exported, fx.Graph(), list[InputSpec]()
    names: dict[str, str] = {}
    values = (node.meta.get("val") for node in exported.graph.nodes)
    mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    for target, tensor in weights.items():
        placeholder = copied.placeholder("p_" + "".join(c if c.isalnum() else "_" for c in target))
        with mode:
            placeholder.meta["val"] = torch.empty(tensor.shape, dtype=tensor.dtype)
        names[target] = placeholder.name
        argument = TensorArgument(name=placeholder.name)
        lifted.append(InputSpec(InputKind.PARAMETER, argument, target))
    copied.output(copied.graph_copy(exported.graph, {}))
    signature = exported.graph_signature
    signature = replace(signature, input_specs=[*lifted, *signature.input_specs])
    state = {**exported.state_dict, **weights}
    module = fx.GraphModule(exported.graph_module, copied)
    return replace(graph, exported=exported._update(module, signature, state_dict=state)), names


def without_unused_weights(graph: Graph) -> Graph:
    """A copy of `graph` without the weights that nothing reads."""
    exported, copied = graph.exported, fx.Graph()
    copied.output(copied.graph_copy(exported.graph, {}))
    unused = {node.name for node in copied.nodes if node.op == "placeholder" and not node.users}
    specs, state = list[InputSpec](), dict(exported.state_dict)
    nodes = {node.name: node for node in copied.nodes}
    for spec in exported.graph_signature.input_specs:
        if spec.kind is InputKind.PARAMETER and spec.arg.name in unused:
            copied.erase_node(nodes[spec.arg.name])
            state.pop(str(spec.target), None)
        else:
            specs.append(spec)
    signature = replace(exported.graph_signature, input_specs=specs)
    module = fx.GraphModule(exported.graph_module, copied)
    return replace(graph, exported=exported._update(module, signature, state_dict=state))
