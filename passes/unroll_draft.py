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
from spec_compile.passes.draft_tree import DraftTree
from spec_compile.passes.draft_vocab import DraftVocabulary
from spec_compile.passes.round import (
    ROUND_INPUTS,
    as_write,
    cache_inputs,
    sampling_inputs,
    sampling_of,
    select_rows,
    source_inputs,
    written_caches,
)
from spec_compile.passes.several_drafts import DraftsLoop, several_drafts_rule
from spec_compile.passes.trim_draft_vocab import TrimDraftVocab
from spec_compile.program import Composite, Graph, Program, trace
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
        self.graph, self.vocabulary = model, DraftVocabulary(model, vocab_size)
        self.samples = rule.uses_draft_probs
        self.num_steps = num_speculative_tokens
        uniforms = num_speculative_tokens if self.samples else 0
        self.inputs = (
            *ROUND_INPUTS,
            *source_inputs(model),
            *cache_inputs(model),
            *sampling_inputs(uniforms),
        )

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One round of drafting; see the class."""
        caches = {spec.name: tensors[spec.name] for spec in cache_inputs(self.graph)}
        source = {spec.name: tensors[spec.name] for spec in source_inputs(self.graph)}
        tokens = self.vocabulary.readable(tensors["tokens"])
        step = {"tokens": tokens, "lengths": tensors["lengths"], **caches}
        length = tensors["lengths"] + tensors["num_new"]
        row = (tensors["num_new"] - 1).clamp(min=0)[:, None]
        proposed: list[Tensor] = []
        laws: list[Tensor] = []
        written: dict[str, Tensor] = {}
        for index in range(self.num_steps):
            outputs = invoke(self.graph, source | step)
            logits = outputs["logits"] if index else select_rows(outputs["logits"], row)
            place, law = self._propose(self.vocabulary.fit(logits), tensors, index)
            token = self.vocabulary.token_of(place, outputs)
            proposed.append(token)
            laws.append(law)
            caches = written_caches(self.graph, outputs)
            # Every write is an output, so that an engine can do each one in the caller's buffer.
            written |= as_write(caches, index)
            step = {"tokens": token[:, None], "lengths": length + index, **caches}
        results = {"draft_tokens": torch.stack(proposed, dim=1)}
        if self.samples:
            results["draft_probs"] = self.vocabulary.spread(torch.stack(laws, dim=1), outputs)
        return results | written

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
    after = (TrimDraftVocab,)

    def __init__(self, config: SpecConfig, rule: Rule, vocab_size: int, max_length: int) -> None:
        self.config, self.rule = config, rule
        self.vocab_size, self.max_length = vocab_size, max_length

    def requires(self, program: Program) -> None:
        self.need(program, "draft")

    def call(self, program: Program) -> PassResult:
        if any(spec.name == "draft_tokens" for spec in program.graphs["draft"].outputs):
            return PassResult(program, 0)
        graph = trace(
            self._loop(program.graphs["draft"]),
            batch_size=self.config.batch_size,
            max_length=self.max_length,
        )
        return PassResult(program.with_graph("draft", graph), 1)

    def _loop(self, model: Graph) -> Composite:
        num_drafts, num_steps = self.config.num_drafts, self.config.num_speculative_tokens
        if num_drafts == 1:
            return DraftLoop(model, self.rule, num_steps, self.vocab_size)
        tree = DraftTree(num_drafts, num_steps)
        return DraftsLoop(model, several_drafts_rule(self.rule), tree, self.vocab_size)
