"""What is legal in any program: a table of invariants, each with a check of one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from spec_compile.errors import VerifierError
from spec_compile.ops import CACHED_ATTENTION
from spec_compile.program import Graph, Program, TensorSpec

_NAMESPACES = frozenset({"aten", "spec_compile", "higher_order", "_operator", "torch.sym", "math"})


@dataclass(frozen=True)
class Invariant:
    """An invariant of one graph: `breaches` yields the offenders, in words."""

    name: str
    breaches: Callable[[Graph], Iterator[str]]


def _inputs_match(graph: Graph) -> Iterator[str]:
    values = {node.name: node.meta.get("val") for node in graph.nodes if node.op == "placeholder"}
    names = [str(name) for name in graph.exported.graph_signature.user_inputs]
    if len(names) != len(graph.inputs):
        yield f"{len(names)} inputs but {len(graph.inputs)} entries in the tensor table"
        return
    for spec, name in zip(graph.inputs, names, strict=True):
        yield from _differences(spec, values[name])


def _outputs_match(graph: Graph) -> Iterator[str]:
    nodes = cast(Sequence[fx.Node], graph.nodes[-1].args[0])
    if len(nodes) != len(graph.outputs):
        yield f"{len(nodes)} outputs but {len(graph.outputs)} entries in the tensor table"
        return
    for spec, node in zip(graph.outputs, nodes, strict=True):
        yield from _differences(spec, node.meta.get("val"))


def _differences(spec: TensorSpec, value: object) -> Iterator[str]:
    if not isinstance(value, torch.Tensor):
        yield f"{spec.name} has no tensor"
        return
    if value.dtype != spec.dtype:
        yield f"{spec.name} is {value.dtype}, the tensor table says {spec.dtype}"
    fits = len(value.shape) == len(spec.shape) and all(
        isinstance(size, int) == isinstance(said, int)
        and (not isinstance(said, int) or size == said)
        for size, said in zip(value.shape, spec.shape, strict=True)
    )
    if not fits:
        yield f"{spec.name} is {list(value.shape)}, the tensor table says {list(spec.shape)}"


def _no_randomness(graph: Graph) -> Iterator[str]:
    for node in _calls(graph):
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            yield f"{node.name} draws random numbers"


def _known_operators(graph: Graph) -> Iterator[str]:
    for node in _calls(graph):
        namespace = getattr(node.target, "namespace", getattr(node.target, "__module__", ""))
        if namespace not in _NAMESPACES:
            yield f"{node.name} calls {node.target}"


def _caches_updated(graph: Graph) -> Iterator[str]:
    updated = {spec.alias_of: spec for spec in graph.outputs if spec.alias_of}
    for spec in graph.inputs:
        if spec.is_cache and spec.name not in updated:
            yield f"{spec.name} has no updated output"
        elif spec.is_cache and updated[spec.name].shape != spec.shape:
            yield f"{spec.name} changes its shape"


def _caches_only_attended(graph: Graph) -> Iterator[str]:
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for spec, name in zip(graph.inputs, graph.exported.graph_signature.user_inputs, strict=True):
        for user in placeholders[str(name)].users if spec.is_cache else ():
            # Shape queries read no element of the cache.
            if user.target not in (CACHED_ATTENTION, torch.ops.aten.sym_size.int):
                yield f"{spec.name} is read by {user.name}"


INVARIANTS = (
    Invariant("inputs match the tensor table", _inputs_match),
    Invariant("outputs match the tensor table", _outputs_match),
    Invariant("all randomness is an input", _no_randomness),
    Invariant("only known operators", _known_operators),
    Invariant("every cache is updated", _caches_updated),
    Invariant("only attention reads a cache", _caches_only_attended),
)


def verify(program: Program) -> None:
    """Check every graph of `program`.

    Raises:
        VerifierError: a rule is broken; the message names graph, rule and the first offender.
    """
    for name, graph in program.graphs.items():
        for invariant in INVARIANTS:
            for breach in invariant.breaches(graph):
                raise VerifierError(f"graph {name} breaks the rule '{invariant.name}': {breach}")


def _calls(graph: Graph) -> Iterator[fx.Node]:
    return (node for node in graph.nodes if node.op == "call_function")
