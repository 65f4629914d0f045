"""A Spec-Drafter on disk: `config.json` and `model.safetensors`, read without trust."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from spec_compile.errors import CheckpointError
from spec_compile.export.spec_drafter import DrafterSizes, SpecDrafter, sinusoids
from spec_compile.program import first_line

MODEL_TYPE = "spec_compile_spec_drafter"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER_HASH = "target_tokenizer_sha256"
# What a file may ask for: layers are made, and positions computed, before any weight is looked at.
LARGEST = {
    "vocab_size": 1 << 24,
    "max_length": 1 << 16,
    "encoder_layers": 256,
    "decoder_layers": 256,
}
LARGEST_WIDTH = 1 << 16


def is_spec_drafter(folder: Path) -> bool:
    """Whether the folder's `config.json` says that it holds a Spec-Drafter."""
    try:
        return bool(_read(folder).get("model_type") == MODEL_TYPE)
    except CheckpointError:
        return False


def save_spec_drafter(
    folder: Path, drafter: SpecDrafter, tokenizer_sha256: str, dtype: torch.dtype = torch.float16
) -> None:
    """Write a drafter into `folder`, which is made if need be.

    Args:
        folder: where to.
        drafter: the module.
        tokenizer_sha256: of the tokens that it speaks, as `compact_draft.tokenizer_hash` makes it.
        dtype: of the stored weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": MODEL_TYPE, TOKENIZER_HASH: tokenizer_sha256, **asdict(drafter.sizes)}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = {k: w.detach().to(dtype).contiguous() for k, w in drafter.state_dict().items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def load_spec_drafter(
    folder: Path, dtype: torch.dtype = torch.float32, tokenizer_sha256: str | None = None
) -> SpecDrafter:
    """The drafter of a folder in evaluation mode.

    Args:
        folder: what `save_spec_drafter` wrote.
        dtype: of the loaded weights.
        tokenizer_sha256: of the target's tokens; None asks for none.

    Raises:
        CheckpointError: the files are missing, damaged or do not fit each other, or the drafter
            speaks other tokens.
    """
    config = _read(folder)
    if config.pop("model_type", None) != MODEL_TYPE:
        raise CheckpointError(f"{folder}/{CONFIG}: model_type is not {MODEL_TYPE!r}")
    known = config.pop(TOKENIZER_HASH, None)
    if not isinstance(known, str):
        raise CheckpointError(f"{folder}/{CONFIG} has no sound {TOKENIZER_HASH}")
    if tokenizer_sha256 not in (None, known):
        raise CheckpointError(
            f"{folder} was trained for a target with another tokenizer; give the target that its "
            "README.md names"
        )
    sizes = _sizes(folder, config)
    with torch.device("meta"):
        drafter = SpecDrafter(sizes)
    weights = _weights(folder, drafter)
    drafter.load_state_dict({k: w.to(dtype) for k, w in weights.items()}, assign=True)
    # The table of positions is in no file and still without memory.
    drafter.positions = sinusoids(sizes.max_length, sizes.hidden_size).to(dtype)
    return drafter.train(False).requires_grad_(False)


def _read(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder}/{CONFIG}: {first_line(error)}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{folder}/{CONFIG} holds no object")
    return config


def _sizes(folder: Path, config: dict[str, Any]) -> DrafterSizes:
    names = {field.name for field in fields(DrafterSizes)}
    for name in sorted(names | config.keys()):
        value = config.get(name)
        if name not in names:
            raise CheckpointError(f"{folder}/{CONFIG}: {name} is no field of a Spec-Drafter")
        if type(value) is not int or not 1 <= value <= LARGEST.get(name, LARGEST_WIDTH):
            raise CheckpointError(f"{folder}/{CONFIG}: {name} is {value!r}, not a sound number")
    sizes = DrafterSizes(**config)
    if sizes.hidden_size % 2 or sizes.hidden_size % sizes.num_heads:
        raise CheckpointError(
            f"{folder}/{CONFIG}: hidden_size={sizes.hidden_size} must be even and a multiple of "
            f"num_heads={sizes.num_heads}"
        )
    if sizes.max_speculative_tokens >= sizes.max_length:
        raise CheckpointError(
            f"{folder}/{CONFIG}: max_speculative_tokens={sizes.max_speculative_tokens} must be "
            f"smaller than max_length={sizes.max_length}"
        )
    return sizes


def _weights(folder: Path, drafter: SpecDrafter) -> dict[str, Tensor]:
    try:
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}/{WEIGHTS}: {first_line(error)}") from error
    expected = {name: list(weight.shape) for name, weight in drafter.state_dict().items()}
    for name in sorted(expected.keys() | weights.keys()):
        found = list(weights[name].shape) if name in weights else "missing"
        if found != expected.get(name):
            wanted = expected.get(name, "no such weight")
            raise CheckpointError(
                f"{folder}: the weight {name} is {found}, config.json says {wanted}"
            )
        if not weights[name].isfinite().all():
            raise CheckpointError(f"{folder}: the weight {name} holds NaN or infinity")
    return weights
