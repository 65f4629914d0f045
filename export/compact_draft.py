"""Compact drafts: checkpoints that lean on their target's own embeddings.

A compact draft holds layers, a projection of the target's embeddings to its own narrow width, and
a head over the few tokens that it may propose. Its folder names no path: the embeddings come from
the target it is compiled with, which has to be the one it was trained for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from spec_compile.errors import CheckpointError
from spec_compile.program import first_line

MODEL_TYPE = "spec_compile_compact_draft"
PROJECTION, HEAD, TOKEN_IDS = "embed_projection.weight", "lm_head.weight", "token_ids"
_EMBEDDING = "model.embed_tokens.weight"
_FACTS = {
    "num_output_tokens": int,
    "target_hidden_size": int,
    "target_embedding_sha256": str,
    "target_tokenizer_sha256": str,
}


class CompactDraftConfig(LlamaConfig):  # type: ignore[no-untyped-call]
    """A Llama configuration with what the draft expects of its target.

    Further fields: `num_output_tokens` (N, rows of the head), `target_hidden_size`,
    `target_embedding_sha256` and `target_tokenizer_sha256` (see `embedding_hash`,
    `tokenizer_hash`). `vocab_size` is the number of the target's embeddings.
    """

    model_type = MODEL_TYPE


AutoConfig.register(MODEL_TYPE, CompactDraftConfig)


@dataclass(frozen=True)
class CompactDraft:
    """A compact draft that has been joined to its target.

    Args:
        model: a plain Llama model over all of the target's ids. Head rows of ids that the draft
            cannot propose are zero, and mean nothing.
        token_ids: [N] int64, ascending: the ids that it proposes.
    """

    model: LlamaForCausalLM
    token_ids: Tensor


def is_compact(config: Any) -> bool:
    """Whether a checkpoint's configuration is that of a compact draft."""
    return isinstance(config, CompactDraftConfig)


def load_compact_draft(
    folder: Path,
    config: Any,
    target: PreTrainedModel,
    tokenizer_ids: Mapping[int, str],
    dtype: torch.dtype,
) -> CompactDraft:
    """Fold the target's embeddings into a compact draft.

    Args:
        folder: where its `model.safetensors` is.
        config: its `CompactDraftConfig`.
        target: the model that it proposes for.
        tokenizer_ids: the pair's tokens by id.
        dtype: of the weights.

    Raises:
        CheckpointError: the target is not the one it was trained for, or its weights do not fit.
    """
    embeddings = cast(Tensor, target.get_input_embeddings().weight).detach()
    _check_target(folder, config, embeddings, tokenizer_ids)
    try:
        weights = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}/model.safetensors: {first_line(error)}") from error
    expected = weight_shapes(config)
    for name in sorted(expected.keys() | weights.keys()):
        found = list(weights[name].shape) if name in weights else "missing"
        if found != expected.get(name):
            wanted = expected.get(name, "no such weight")
            raise CheckpointError(
                f"{folder}: the weight {name} is {found}, config.json says {wanted}"
            )
        if not weights[name].isfinite().all():
            raise CheckpointError(f"{folder}: the weight {name} holds NaN or infinity")
    ids = _token_ids(folder, weights.pop(TOKEN_IDS), config.vocab_size)
    projection, head = weights.pop(PROJECTION).float(), weights.pop(HEAD).float()
    weights[_EMBEDDING] = embeddings.float() @ projection.T
    weights[HEAD] = torch.zeros(config.vocab_size, head.shape[1]).index_copy(0, ids, head)
    with torch.device("meta"):
        model = LlamaForCausalLM(_llama_config(config))
    model.load_state_dict({k: v.to(dtype) for k, v in weights.items()}, assign=True)
    # Buffers that no checkpoint holds (rotary frequencies) are still without memory.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return CompactDraft(model, ids)


def write_compact_draft(
    folder: Path,
    sizes: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    target_embeddings: Tensor,
    target_tokens: Mapping[int, str],
) -> None:
    """Write `config.json` and `model.safetensors` of a compact draft into an existing folder.

    Args:
        folder: where to.
        sizes: fields of a Llama configuration, `vocab_size` left out.
        weights: as `weight_shapes` says, in the types to store; `token_ids` [N] ascending.
        target_embeddings: the target's input embeddings [V, hidden].
        target_tokens: the target's tokens by id.
    """
    config = {
        **sizes,
        "model_type": MODEL_TYPE,
        "vocab_size": len(target_embeddings),
        "num_output_tokens": len(weights[TOKEN_IDS]),
        "target_hidden_size": target_embeddings.shape[1],
        "target_embedding_sha256": embedding_hash(target_embeddings),
        "target_tokenizer_sha256": tokenizer_hash(target_tokens),
    }
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    stored = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def embedding_hash(embeddings: Tensor) -> str:
    """SHA-256 of a model's input embeddings [V, hidden] as little-endian float32."""
    values = embeddings.detach().float().contiguous().numpy().astype("<f4", copy=False)
    return hashlib.sha256(values.data).hexdigest()


def tokenizer_hash(tokens: Mapping[int, str]) -> str:
    """SHA-256 of a tokenizer's tokens by id."""
    return hashlib.sha256(json.dumps(sorted(tokens.items())).encode()).hexdigest()


def _check_target(
    folder: Path, config: Any, embeddings: Tensor, tokenizer_ids: Mapping[int, str]
) -> None:
    for name, kind in _FACTS.items():
        if type(getattr(config, name, None)) is not kind:
            raise CheckpointError(f"{folder}/config.json has no sound {name}")
    found, wanted = list(embeddings.shape), [config.vocab_size, config.target_hidden_size]
    if found != wanted:
        raise CheckpointError(
            f"{folder} was trained for a target with embeddings {wanted}, this one's are {found}; "
            "give the target that its README.md names"
        )
    if tokenizer_hash(tokenizer_ids) != config.target_tokenizer_sha256:
        raise CheckpointError(
            f"{folder} was trained for a target with another tokenizer; give the target that its "
            "README.md names"
        )
    if embedding_hash(embeddings) != config.target_embedding_sha256:
        raise CheckpointError(
            f"{folder} was trained for a target with other embeddings; give the target that its "
            "README.md names"
        )


def weight_shapes(config: Any) -> dict[str, list[int]]:
    """Every weight that the checkpoint with the configuration `config` has, and its shape."""
    with torch.device("meta"):
        plain = LlamaForCausalLM(_llama_config(config)).state_dict()
    shapes = {name: list(weight.shape) for name, weight in plain.items() if name != _EMBEDDING}
    return shapes | {
        HEAD: [config.num_output_tokens, config.hidden_size],
        PROJECTION: [config.hidden_size, config.target_hidden_size],
        TOKEN_IDS: [config.num_output_tokens],
    }


def _token_ids(folder: Path, ids: Tensor, vocab_size: int) -> Tensor:
    ids = ids.long()
    if len(ids) == 0 or ids[0] < 0 or ids[-1] >= vocab_size or not (ids.diff() > 0).all():
        raise CheckpointError(
            f"{folder}: {TOKEN_IDS} are not ascending ids between 0 and {vocab_size - 1}"
        )
    return ids


def _llama_config(config: Any) -> LlamaConfig:
    fields = config.to_dict()
    for name in ("model_type", "architectures", *_FACTS):
        fields.pop(name, None)
    return LlamaConfig(**{**fields, "tie_word_embeddings": False})
