"""Fuse a whole round: draft loop, verification and acceptance as one graph, one call a round."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from spec_compile.config import SpecConfig
from spec_compile.graph_call import invoke
from spec_compile.passes.base import Pass, PassResult
from spec_compile.passes.draft_tree import DraftTree
from spec_compile.passes.fuse_acceptance import FuseAcceptance
from spec_compile.passes.round import (
    ROUND_INPUTS,
    as_write,
    cache_inputs,
    sampling_inputs,
    source_inputs,
    written_caches,
)
from spec_compile.passes.unroll_draft import UnrollDraft
from spec_compile.program import Composite, Graph, Program, trace


class Step(Composite):
    """The draft loop feeds the verification; the first k `uniforms` are the draft's.

    Both models take the same `tokens` and `lengths`, so both caches always hold the same tokens.
    """

    def __init__(self, draft: Graph, verify: Graph, tree: DraftTree) -> None:
        super().__init__()
        self.draft = draft
        self.verify = verify
        self.tree = tree
        self.num_draft_uniforms = _num_uniforms(draft)
        uniforms = self.num_draft_uniforms + _num_uniforms(verify)
        caches = (*cache_inputs(verify), *cache_inputs(draft))
        source = source_inputs(verify, draft)
        self.inputs = (*ROUND_INPUTS, *source, *caches, *sampling_inputs(uniforms))

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One round; see the class."""
        own, rest = self._split_uniforms(tensors)
        drafted = invoke(self.draft, {**tensors, **own})
        verified = invoke(self.verify, {**tensors, **rest, **drafted})
        caches = {name: value for name, value in drafted.items() if "_cache." in name}
        if self.tree.num_drafts == 1:
            return verified | caches
        last = written_caches(self.draft, drafted)
        moved = self.tree.keep_survivor(last, tensors, verified["survivor"])
        return verified | caches | as_write(moved, self.tree.num_steps)

    def _split_uniforms(
        self, tensors: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        if self.num_draft_uniforms == 0:
            return {}, {}
        uniforms = tensors["uniforms"]
        first, rest = uniforms[:, : self.num_draft_uniforms], uniforms[:, self.num_draft_uniforms :]
        return {"uniforms": first}, {"uniforms": rest}


class FuseStep(Pass):
    """Replace the graphs `draft` and `verify` by the graph `step`."""

    name = "fuse_step"
    after = (UnrollDraft, FuseAcceptance)

    def __init__(self, config: SpecConfig, max_length: int) -> None:
        self.config, self.max_length = config, max_length

    def requires(self, program: Program) -> None:
        if "step" not in program.graphs:
            self.need(program, "draft", "verify")

    def call(self, program: Program) -> PassResult:
        if "step" in program.graphs:
            return PassResult(program, 0)
        tree = DraftTree(self.config.num_drafts, self.config.num_speculative_tokens)
        module = Step(program.graphs["draft"], program.graphs["verify"], tree)
        graph = trace(module, batch_size=self.config.batch_size, max_length=self.max_length)
        return PassResult(program.without("draft", "verify").with_graph("step", graph), 1)

    def ensures(self, program: Program) -> None:
        self.promise(program, "step")


def _num_uniforms(graph: Graph) -> int:
    sizes = [spec.shape[-1] for spec in graph.inputs if spec.name == "uniforms"]
    return int(sizes[0]) if sizes else 0
