"""Rotary position embeddings whose frequencies change with the sequence: fixed, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedModel

from spec_compile.errors import CaptureError

_LENGTH_DEPENDENT = ("dynamic", "longrope")


def freeze_rope(model: PreTrainedModel, max_length: int) -> None:
    """Fix frequencies that depend on the length, when no length up to `max_length` moves them.

    `transformers` recomputes `dynamic` and `longrope` frequencies once a sequence outgrows the
    original context, which leaves cached keys rotated by other frequencies: no graph with a cache
    can follow.

    Raises:
        CaptureError: `max_length` goes past the original context.
    """
    config = model.config.get_text_config()
    for kind, limit in _length_dependent(config):
        if max_length > limit:
            raise CaptureError(
                f"RoPE scaling {kind!r} changes with the sequence beyond {limit} tokens; "
                f"export with --max-length {limit} or less"
            )
    for module in model.modules():
        rope_type: Any = getattr(module, "rope_type", None)
        if isinstance(rope_type, str):
            setattr(module, "rope_type", _fixed(rope_type))  # noqa: B010 (not a declared attribute)
        elif isinstance(rope_type, dict):
            fixed = {layer: _fixed(name) for layer, name in rope_type.items()}
            setattr(module, "rope_type", fixed)  # noqa: B010 (not a declared attribute)


def _fixed(rope_type: str) -> str:
    return "default" if rope_type in _LENGTH_DEPENDENT else rope_type


def _length_dependent(config: Any) -> Iterator[tuple[str, int]]:
    for parameters in _rope_parameters(getattr(config, "rope_parameters", None)):
        kind = parameters.get("rope_type", "default")
        if kind in _LENGTH_DEPENDENT:
            original = parameters.get("original_max_position_embeddings")
            yield kind, int(original or config.max_position_embeddings)


def _rope_parameters(parameters: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(parameters, Mapping):
        return
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    yield from nested or [parameters]
