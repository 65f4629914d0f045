"""Drop calls whose results nobody uses."""

from __future__ import annotations

from torch import fx

from spec_compile.passes.base import Mismatch, Pass, PassResult
from spec_compile.passes.merge_duplicates import MergeDuplicates
from spec_compile.passes.prune_logits import PruneLogits
from spec_compile.passes.rewrite import rewrite_graphs
from spec_compile.program import Program


class DropDeadCode(Pass):
    """Remove every call, except inputs, that does not lead to an output."""

    name = "drop_dead_code"
    after = (MergeDuplicates, PruneLogits)

    def call(self, program: Program) -> PassResult:
        return rewrite_graphs(program, drop_dead_code)


def drop_dead_code(graph: fx.Graph, mismatches: list[Mismatch]) -> int:
    """Edit `graph` as the pass does; returns how many calls went."""
    del mismatches
    before = len(graph.nodes)
    graph.eliminate_dead_code()
    return before - len(graph.nodes)
