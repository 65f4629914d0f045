"""Fuse verification with acceptance: target forward, sampling transforms and rule as one graph."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spec_compile.acceptance import RULES, Rule
from spec_compile.config import SpecConfig
from spec_compile.graph_call import invoke
from spec_compile.ops import PROCESS_LOGITS
from spec_compile.passes.base import Pass, PassResult
from spec_compile.passes.draft_tree import DraftTree, chain_call
from spec_compile.passes.round import (
    ROUND_INPUTS,
    are_numbers,
    cache_inputs,
    fit_vocabulary,
    num_uniforms,
    sampling_inputs,
    sampling_of,
    select_rows,
    source_inputs,
)
from spec_compile.passes.several_drafts import VerifyDrafts, several_drafts_rule
from spec_compile.program import Composite, Graph, Program, TensorSpec, trace


class VerifyAndAccept(Composite):
    """One target forward over the new tokens and k draft tokens, and acceptance of the drafts.

    Outputs `output_tokens` [B, k+1] int64 (-1 in the unused tail) and `num_emitted` [B] int64, 0 in
    a row whose logits are not numbers. With k = 0 it is plain decoding, and also gives the last
    `logits` [B, 1, V] float32.

    With `any_length`, `draft_tokens` is [B, J] for any J of 0 to k and `output_tokens` [B, J+1].
    """

    def __init__(
        self,
        model: Graph,
        rule: Rule,
        num_speculative_tokens: int,
        vocab_size: int,
        *,
        any_length: bool = False,
    ) -> None:
        super().__init__()
        self.graph, self.rule = model, rule
        self.drafts, self.vocab_size = num_speculative_tokens > 0, vocab_size
        drafts = _draft_inputs(num_speculative_tokens, vocab_size, rule, any_length)
        sampling = sampling_inputs(num_uniforms(rule, num_speculative_tokens))
        models = (*source_inputs(model), *cache_inputs(model))
        self.inputs = (*ROUND_INPUTS, *drafts, *models, *sampling)

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One verification; see the class."""
        block = {**tensors, "tokens": self._block(tensors)}
        outputs = invoke(self.graph, block | chain_call(self.graph, block))
        drafts = self._drafts(tensors)
        rows = tensors["num_new"][:, None] - 1 + torch.arange(drafts.shape[1] + 1)
        logits = select_rows(outputs["logits"], rows.clamp(min=0))
        logits = fit_vocabulary(logits, self.vocab_size).float()
        tokens, emitted = self._accept(drafts, logits, tensors)
        emitted = torch.where(are_numbers(logits, tensors), emitted, 0)
        results = {"output_tokens": tokens, "num_emitted": emitted}
        if not self.drafts:
            results["logits"] = logits
        return results | {
            spec.name: outputs[spec.name] for spec in self.graph.outputs if spec.alias_of
        }

    def _block(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """New tokens with the drafts right behind each row's real ones: [B, T + J]."""
        tokens, drafts = tensors["tokens"], self._drafts(tensors)
        if not self.drafts:
            return tokens
        padded = torch.nn.functional.pad(tokens, (0, drafts.shape[1]))
        slots = tensors["num_new"][:, None] + torch.arange(drafts.shape[1])
        if not self.rule.uses_draft_probs:
            # -1 proposes nothing, but something has to be read.
            drafts = drafts.clamp(min=0)
        return padded.scatter(1, slots, drafts)

    def _drafts(self, tensors: Mapping[str, Tensor]) -> Tensor:
        tokens = tensors["tokens"]
        return tensors["draft_tokens"] if self.drafts else tokens.new_zeros((tokens.shape[0], 0))

    def _accept(
        self, drafts: Tensor, logits: Tensor, tensors: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        if not self.rule.samples:
            return self.rule(drafts, None, logits, None)
        target_probs = PROCESS_LOGITS(logits, *sampling_of(tensors))
        draft_probs = tensors.get("draft_probs", target_probs[:, :0])
        return self.rule(drafts, draft_probs, target_probs, tensors["uniforms"])


class FuseAcceptance(Pass):
    """Make the graph `verify` from `target`; `target` becomes plain decoding, one token a call."""

    name = "fuse_acceptance"

    def __init__(self, config: SpecConfig, rule: Rule, vocab_size: int, max_length: int) -> None:
        self.config, self.rule = config, rule
        self.vocab_size, self.max_length = vocab_size, max_length

    def requires(self, program: Program) -> None:
        self.need(program, "target")

    def call(self, program: Program) -> PassResult:
        model = program.graphs["target"]
        if any(spec.name == "num_emitted" for spec in model.outputs):
            return PassResult(program, 0)
        for name, module in (("verify", self._verify(model)), ("target", self._plain(model))):
            graph = trace(
                module,
                batch_size=self.config.batch_size,
                max_length=self.max_length,
                num_speculative_tokens=max(2, self.config.num_speculative_tokens),
            )
            program = program.with_graph(name, graph)
        return PassResult(program, 2)

    def ensures(self, program: Program) -> None:
        self.promise(program, "verify", "target")

    def _verify(self, model: Graph) -> Composite:
        num_drafts, num_steps = self.config.num_drafts, self.config.num_speculative_tokens
        if num_drafts == 1:
            # torch takes a size that can be 0 or 1 alone for a number.
            any_length = self.config.varies_length and num_steps > 1 and self.rule.symbolic_length
            return VerifyAndAccept(
                model, self.rule, num_steps, self.vocab_size, any_length=any_length
            )
        tree = DraftTree(num_drafts, num_steps)
        return VerifyDrafts(model, several_drafts_rule(self.rule), tree, self.vocab_size)

    def _plain(self, model: Graph) -> Composite:
        rule = RULES["rejection"] if self.rule.samples else self.rule
        return VerifyAndAccept(model, rule, 0, self.vocab_size)


def _draft_inputs(
    drafted: int, vocab_size: int, rule: Rule, any_length: bool
) -> tuple[TensorSpec, ...]:
    if drafted == 0:
        return ()
    tokens = TensorSpec("draft_tokens", torch.int64, ("B", "J" if any_length else drafted))
    if not rule.uses_draft_probs:
        return (tokens,)
    return (tokens, TensorSpec("draft_probs", torch.float32, ("B", drafted, vocab_size)))
