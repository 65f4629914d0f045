"""Rounds with several drafts: the draft loop, verification in one pass, and what survives."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spec_compile.acceptance import Accepted, Rule, SeveralDraftsRule
from spec_compile.errors import ConfigError
from spec_compile.graph_call import invoke
from spec_compile.ops import PROCESS_LOGITS
from spec_compile.passes.draft_candidates import first_tokens
from spec_compile.passes.draft_tree import DraftTree, num_slots
from spec_compile.passes.draft_vocab import DraftVocabulary
from spec_compile.passes.round import (
    ROUND_INPUTS,
    are_numbers,
    as_write,
    cache_inputs,
    fit_vocabulary,
    num_uniforms,
    sampling_inputs,
    sampling_of,
    select_rows,
    source_inputs,
    written_caches,
)
from spec_compile.program import Composite, Graph, TensorSpec
from spec_compile.sampling import sample


class DraftsLoop(Composite):
    """Feeds `num_new` tokens to the draft model, then proposes K drafts of k tokens.

    Each step reads one token of every draft, in one call of the model. Outputs `draft_tokens`
    [B, K, k] int64 and `draft_probs` [B, K, k, V] float32, the law after each draft's prefix.
    """

    def __init__(
        self, model: Graph, rule: SeveralDraftsRule, tree: DraftTree, vocab_size: int
    ) -> None:
        super().__init__()
        self.graph, self.rule, self.tree = model, rule, tree
        self.vocabulary = DraftVocabulary(model, vocab_size)
        self.inputs = (
            *ROUND_INPUTS,
            *source_inputs(model),
            *cache_inputs(model),
            *sampling_inputs(tree.size),
        )

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One round of drafting; see the class."""
        caches = {spec.name: tensors[spec.name] for spec in cache_inputs(self.graph)}
        source = {spec.name: tensors[spec.name] for spec in source_inputs(self.graph)}
        slots = num_slots(self.graph)
        call = self.tree.first_call(tensors, slots)
        tokens = self.vocabulary.readable(tensors["tokens"])
        proposed: list[Tensor] = []
        laws: list[Tensor] = []
        written: dict[str, Tensor] = {}
        for step in range(self.tree.num_steps):
            outputs = invoke(self.graph, {"tokens": tokens, **source, **call, **caches})
            places, law = self._propose(outputs["logits"], tensors, step)
            tokens = self.vocabulary.token_of(places, outputs)
            proposed.append(tokens)
            laws.append(law)
            caches = written_caches(self.graph, outputs)
            # Every write is an output, so that an engine can do each one in the caller's buffer.
            written |= as_write(caches, step)
            call = self.tree.step_call(tensors, step, slots)
        draft_probs = self.vocabulary.spread(torch.stack(laws, dim=2), outputs)
        drafts = {"draft_tokens": torch.stack(proposed, dim=2), "draft_probs": draft_probs}
        return drafts | written

    def _propose(
        self, logits: Tensor, tensors: Mapping[str, Tensor], step: int
    ) -> tuple[Tensor, Tensor]:
        """Place of token number `step` of each draft [B, K], and their laws [B, K, N]."""
        count = self.tree.num_drafts
        uniforms = tensors["uniforms"][:, step * count : (step + 1) * count]
        if step == 0:
            last = (tensors["num_new"] - 1).clamp(min=0)[:, None]
            logits = self.vocabulary.fit(select_rows(logits, last))
            law = PROCESS_LOGITS(logits, *sampling_of(tensors))
            tokens = first_tokens(self.rule.drafting, law[:, 0], logits[:, 0], uniforms)
            return tokens, law.expand(-1, count, -1)
        law = PROCESS_LOGITS(self.vocabulary.fit(logits), *sampling_of(tensors))
        tokens = sample(law.flatten(0, 1), uniforms.flatten())
        return tokens.view(-1, count), law


class VerifyDrafts(Composite):
    """One target forward over the new tokens and all drafts, and acceptance.

    Outputs `output_tokens` [B, k + 1] int64 (-1 in the unused tail), `num_emitted` [B] int64 (0 in
    a row whose logits are not numbers) and `survivor` [B] int64, the draft that the output follows;
    its cache entries are moved behind the committed ones.
    """

    def __init__(
        self, model: Graph, rule: SeveralDraftsRule, tree: DraftTree, vocab_size: int
    ) -> None:
        super().__init__()
        self.graph, self.rule, self.tree, self.vocab_size = model, rule, tree, vocab_size
        drafts = (tree.num_drafts, tree.num_steps)
        self.inputs = (
            *ROUND_INPUTS,
            TensorSpec("draft_tokens", torch.int64, ("B", *drafts)),
            TensorSpec("draft_probs", torch.float32, ("B", *drafts, vocab_size)),
            *source_inputs(model),
            *cache_inputs(model),
            *sampling_inputs(num_uniforms(rule, tree.num_steps, tree.num_drafts)),
        )

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One verification; see the class."""
        block = {**tensors, "tokens": self._block(tensors)}
        call = self.tree.first_call(block, num_slots(self.graph))
        outputs = invoke(self.graph, block | call)
        rows = tensors["num_new"][:, None] - 1 + torch.arange(self.tree.size + 1)
        logits = select_rows(outputs["logits"], rows.clamp(min=0))
        logits = fit_vocabulary(logits, self.vocab_size).float()
        accepted = self._accept(logits, tensors)
        caches = written_caches(self.graph, outputs)
        moved = self.tree.keep_survivor(caches, tensors, accepted.survivor)
        emitted = torch.where(are_numbers(logits, tensors), accepted.num_emitted, 0)
        return {
            "output_tokens": accepted.output_tokens,
            "num_emitted": emitted,
            "survivor": accepted.survivor,
            **as_write(caches, 0),
            **as_write(moved, 1),
        }

    def _block(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """New tokens with all drafts, step by step, right behind each row's real ones."""
        padded = torch.nn.functional.pad(tensors["tokens"], (0, self.tree.size))
        slots = tensors["num_new"][:, None] + torch.arange(self.tree.size)
        return padded.scatter(1, slots, tensors["draft_tokens"].transpose(1, 2).flatten(1))

    def _accept(self, logits: Tensor, tensors: Mapping[str, Tensor]) -> Accepted:
        law = PROCESS_LOGITS(logits, *sampling_of(tensors))
        target_probs = law.index_select(1, self._rows_of_drafts()).unflatten(
            1, (self.tree.num_drafts, self.tree.num_steps + 1)
        )
        return self.rule.accept(
            tensors["draft_tokens"], tensors["draft_probs"], target_probs, tensors["uniforms"]
        )

    def _rows_of_drafts(self) -> Tensor:
        """Rows of the laws that each draft takes: the shared first, then its own: [K * (k + 1)]."""
        draft = torch.arange(self.tree.num_drafts)[:, None]
        own = 1 + torch.arange(self.tree.num_steps) * self.tree.num_drafts + draft
        return torch.nn.functional.pad(own, (1, 0)).flatten()


def several_drafts_rule(rule: Rule) -> SeveralDraftsRule:
    """`rule`, which takes several drafts: `SpecConfig` refuses the others."""
    if not isinstance(rule, SeveralDraftsRule):
        raise ConfigError(f"acceptance={rule.name!r} takes one draft per round")
    return rule
