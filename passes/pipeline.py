"""The compiler, in order. To learn what spec-compile does to a pair of models, read this list."""

from __future__ import annotations

from collections.abc import Sequence

from spec_compile.acceptance import Rule, rule_for
from spec_compile.config import SpecConfig
from spec_compile.passes.base import Pass
from spec_compile.passes.drop_dead_code import DropDeadCode
from spec_compile.passes.fold_logits_bias import FoldLogitsBias
from spec_compile.passes.fuse_acceptance import FuseAcceptance
from spec_compile.passes.fuse_step import FuseStep
from spec_compile.passes.merge_duplicates import MergeDuplicates
from spec_compile.passes.pack_projections import PackProjections
from spec_compile.passes.prune_logits import PruneLogits
from spec_compile.passes.remove_no_ops import RemoveNoOps
from spec_compile.passes.trim_draft_vocab import TrimDraftVocab
from spec_compile.passes.unroll_draft import UnrollDraft


def build_pipeline(
    config: SpecConfig,
    *,
    vocab_size: int,
    max_length: int,
    draft_token_ids: Sequence[int] | None = None,
    rule: Rule | None = None,
) -> list[Pass]:
    """The passes from captured models (`target`, `draft` if there is one) to a bundle's graphs.

    Args:
        config: what the compile was asked for.
        vocab_size: V, the ids that the tokenizer knows.
        max_length: tokens a row may hold.
        draft_token_ids: the tokens that the draft may propose, ascending; None leaves them all.
        rule: the acceptance rule; None is the one that the configuration names.
    """
    rule, drafts = rule or rule_for(config), config.drafter == "model"
    return [
        # Phase 0: tighten the captured models, whose nodes every round then copies.
        FoldLogitsBias(),
        PackProjections(),
        # Phase 1: compose rounds out of the captured models.
        *([TrimDraftVocab(config, draft_token_ids, vocab_size, max_length)] if drafts else []),
        *([UnrollDraft(config, rule, vocab_size, max_length)] if drafts else []),
        FuseAcceptance(config, rule, vocab_size, max_length),
        *([FuseStep(config, max_length)] if config.fusion == "step" else []),
        # Phase 2: clean up what tracing leaves; the next phase matches on what remains.
        RemoveNoOps(),
        MergeDuplicates(),
        # Phase 3: make rounds cheap.
        PruneLogits(),
        DropDeadCode(),
    ]
