"""Unroll the draft loop: k steps of the draft model, each sampling its token, as one graph."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spec_compile.acceptance import Rule
from spec_compile.config import SpecConfig
from spec_compile.graph_call import invoke
from spec_compile.ops import PROCESS_LOGITS
from spec_compile.passes.base import Pass, PassResult
from spec_compile.passes.round import (
    ROUND_INPUTS,
    cache_inputs,
    fit_vocabulary,
    sampling_inputs,
    sampling_of,
    select_rows,
)
from spec_compile.program import Composite, Graph, Program, trace, updated_name
from spec_compile.sampling import argmax, sample


class DraftLoop(Composite):
    """Feeds `num_new` tokens to the draft model, then proposes k tokens.

    Outputs `draft_tokens` [B, k] int64 and, when the rule uses them, `draft_probs` [B, k, V]
    float32: exactly the law each token was drawn from.
    """

    def __init__(
        self, model: Graph, rule: Rule, num_speculative_tokens: int, vocab_size: int
    ) -> None:
        super().__init__()
        self.graph = model
        self.samples = rule.uses_draft_probs
        self.num_steps, self.vocab_size = num_speculative_tokens, vocab_size
        uniforms = num_speculative_tokens if self.samples else 0
        self.inputs = (*ROUND_INPUTS, *cache_inputs(model), *sampling_inputs(uniforms))

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One round of drafting; see the class."""
        caches = {spec.name: tensors[spec.name] for spec in cache_inputs(self.graph)}
        tokens = self._known(tensors["tokens"])
        step = {"tokens": tokens, "lengths": tensors["lengths"], **caches}
        length = tensors["lengths"] + tensors["num_new"]
        row = (tensors["num_new"] - 1).clamp(min=0)[:, None]
        proposed: list[Tensor] = []
        laws: list[Tensor] = []
        written: dict[str, Tensor] = {}
        for index in range(self.num_steps):
            outputs = invoke(self.graph, step)
            logits = outputs["logits"] if index else select_rows(outputs["logits"], row)
            # In float32 from here on, whatever the model computes in.
            logits = fit_vocabulary(logits, self.vocab_size).float()
            token, law = self._propose(logits, tensors, index)
            proposed.append(token)
            laws.append(law)
            caches = {s.alias_of: outputs[s.name] for s in self.graph.outputs if s.alias_of}
            # Every write is an output, so that an engine can do each one in the caller's buffer.
            written |= {updated_name(name, index): cache for name, cache in caches.items()}
            step = {"tokens": token[:, None], "lengths": length + index, **caches}
        results = {"draft_tokens": torch.stack(proposed, dim=1)}
        if self.samples:
            results["draft_probs"] = torch.stack(laws, dim=1)
        return results | written

    def _known(self, tokens: Tensor) -> Tensor:
        """The draft reads its own last id for one it has no embedding of: any draft is exact."""
        rows = next(int(s.shape[-1]) for s in self.graph.outputs if s.name == "logits")
        return tokens.clamp(max=rows - 1) if rows < self.vocab_size else tokens

    def _propose(
        self, logits: Tensor, tensors: Mapping[str, Tensor], index: int
    ) -> tuple[Tensor, Tensor]:
        if not self.samples:
            return argmax(logits[:, 0]), logits
        law = PROCESS_LOGITS(logits, *sampling_of(tensors))[:, 0]
        return sample(law, tensors["uniforms"][:, index]), law


class UnrollDraft(Pass):
    """Replace the graph `draft`, one forward of the draft model, by the draft loop of a round."""

    name = "unroll_draft"

    def __init__(self, config: SpecConfig, rule: Rule, vocab_size: int, max_length: int) -> None:
        self.config, self.rule = config, rule
        self.vocab_size, self.max_length = vocab_size, max_length

    def requires(self, program: Program) -> None:
        self.need(program, "draft")

    def call(self, program: Program) -> PassResult:
        if any(spec.name == "draft_tokens" for spec in program.graphs["draft"].outputs):
            return PassResult(program, 0)
        loop = DraftLoop(
            program.graphs["draft"], self.rule, self.config.num_speculative_tokens, self.vocab_size
        )
        graph = trace(loop, batch_size=self.config.batch_size, max_length=self.max_length)
        return PassResult(program.with_graph("draft", graph), 1)
