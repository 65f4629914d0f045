"""The draft of a pair: a checkpoint with all its own weights, or a compact one; and its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from spec_compile.acceptance import RULES
from spec_compile.config import SpecConfig
from spec_compile.errors import CheckpointError, ConfigError
from spec_compile.export.checkpoint import (
    Checkpoint,
    is_drafter,
    is_seq2seq,
    load_model,
    prepare,
)
from spec_compile.export.compact_draft import is_compact, load_compact_draft, tokenizer_hash
from spec_compile.export.draft_vocab import most_frequent
from spec_compile.export.spec_drafter import SpecDrafter
from spec_compile.export.spec_drafter_files import load_spec_drafter
from spec_compile.export.tokenizer_files import TokenizerFiles, check_same, read_tokenizer


def check_draft(target: Checkpoint, draft: Checkpoint | None, tokenizer: TokenizerFiles) -> None:
    """Refuse a draft that cannot propose for `target`, as far as that shows without weights.

    Without a draft, the target is looked at alone.

    Raises:
        CheckpointError: the tokenizers differ, one model alone reads a source text, or the target
            is a compact draft.
    """
    if is_compact(target.config):
        raise CheckpointError(
            f"{target.source} is a compact draft, which has no embeddings of its own; give it as "
            "the draft of the target that its README.md names"
        )
    if draft is not None:
        _check_kinds(target, draft)
    if draft is not None and not is_compact(draft.config) and not is_drafter(draft.config):
        check_same(tokenizer, read_tokenizer(draft))


def _check_kinds(target: Checkpoint, draft: Checkpoint) -> None:
    kinds = {True: "an encoder-decoder model", False: "a decoder-only model"}
    reads, proposes = is_seq2seq(target.config), is_seq2seq(draft.config)
    if reads != proposes:
        raise CheckpointError(
            f"the target {target.source} is {kinds[reads]} and the draft {draft.source} is "
            f"{kinds[proposes]}: "
            + (
                "a draft that does not read the source cannot tell what follows; take a smaller "
                "encoder-decoder model, or prompt-lookup"
                if reads
                else "there is no source text that its encoder could read; take a decoder-only one"
            )
        )


def _check_drafter(draft: Checkpoint, config: SpecConfig) -> None:
    name = f"{draft.source} is a Spec-Drafter, which"
    if config.fusion != "verify":
        raise ConfigError(f"{name} reads all of a text in every round; choose fusion='verify'")
    if config.num_drafts > 1:
        raise ConfigError(f"{name} proposes one draft a round; choose num_drafts=1")
    if RULES[config.acceptance].uses_draft_probs:
        rules = [rule.name for rule in RULES.values() if not rule.uses_draft_probs]
        raise ConfigError(
            f"{name} gives tokens without laws; acceptance={config.acceptance!r} needs them, "
            f"choose one of {', '.join(rules)}"
        )
    if config.draft_vocab is not None:
        raise ConfigError(f"{name} has no head to trim; leave out draft_vocab")
    most = draft.config.max_speculative_tokens
    if config.num_speculative_tokens > most:
        raise ConfigError(
            f"{name} proposes {most} tokens at most, not "
            f"num_speculative_tokens={config.num_speculative_tokens}"
        )


def check_source_options(target: Checkpoint, config: SpecConfig) -> None:
    """Refuse options that a model with an encoder does not have.

    Raises:
        ConfigError: naming the option.
    """
    if is_seq2seq(target.config) and config.backend != "onnxruntime":
        raise ConfigError(
            f"backend={config.backend!r} runs no encoder-decoder models yet, and "
            f"{target.source} is one; choose onnxruntime"
        )


def load_draft(
    draft: Checkpoint,
    target: PreTrainedModel,
    tokenizer: TokenizerFiles,
    config: SpecConfig,
    eos_token_ids: Sequence[int],
) -> tuple[PreTrainedModel | SpecDrafter, tuple[int, ...] | None]:
    """The draft model ready to be captured, and the ids it may propose, ascending; None for all.

    Args:
        draft: its checkpoint.
        target: the loaded target.
        tokenizer: the pair's.
        config: `draft_vocab` asks for fewer tokens.
        eos_token_ids: ids that the draft may always propose.

    Raises:
        SpecCompileError: its weights do not fit, or not this target; no such vocabulary.
    """
    dtype = getattr(torch, config.dtype)
    if is_drafter(draft.config):
        _check_drafter(draft, config)
        return load_spec_drafter(draft.folder, dtype, tokenizer_hash(tokenizer.ids())), None
    if is_compact(draft.config):
        if config.draft_vocab is not None:
            raise ConfigError(
                f"{draft.source} is a compact draft, which brings its own tokens; leave out "
                "draft_vocab"
            )
        joined = load_compact_draft(draft.folder, draft.config, target, tokenizer.ids(), dtype)
        prepare(joined.model)
        return joined.model, tuple(joined.token_ids.tolist())
    if config.draft_vocab is None or config.draft_vocab_text is None:
        return load_model(draft, dtype), None
    rows = draft.config.get_text_config().vocab_size
    known = min(rows, max(tokenizer.ids(), default=rows) + 1)
    text = Path(config.draft_vocab_text)
    ids = most_frequent(tokenizer, text, config.draft_vocab, known, eos_token_ids)
    return load_model(draft, dtype), ids
