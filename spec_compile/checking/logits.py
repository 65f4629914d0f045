"""Logits of a bundle against the model that it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from spec_compile.checking.contexts import long_context
from spec_compile.checking.result import (
    FAILED,
    SKIPPED,
    CheckResult,
    Progress,
    no_progress,
    verdict,
)
from spec_compile.runtime.api import Decoder

if TYPE_CHECKING:
    from spec_compile.export.checkpoint import Checkpoint

TOLERANCE = 1e-4
"""Largest difference allowed, relative to the model's largest logit."""

_STAGE = "logits"
_LENGTHS = (1, 2, 5, 16, 64, 200)


def check_logits(
    decoder: Decoder, target: str, seed: int, progress: Progress = no_progress
) -> CheckResult:
    """Pass when the `target` graph gives the logits of `transformers`, eager and in float32.

    Args:
        decoder: of the bundle.
        target: folder, hub id or preset of the original model.
        seed: for the ids of a bundle without a tokenizer.
        progress: told of each length.

    Raises:
        CheckpointError: there is no such model.
    """
    from spec_compile.export.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(target)
    limit = min(decoder.manifest.config.max_length, checkpoint.max_length or 2**62)
    lengths = sorted({*(n for n in _LENGTHS if n < limit), limit - 1})
    contexts = [long_context(decoder, length, seed) for length in lengths]
    expected = _model_logits(checkpoint, contexts)
    if expected.shape[1] < decoder.manifest.vocab_size:
        return CheckResult(_STAGE, FAILED, f"{target} knows {expected.shape[1]} ids only")
    errors = []
    for done, (context, row) in enumerate(zip(contexts, expected, strict=True), start=1):
        errors.append(_difference(decoder.next_logits(context), row))
        progress(_STAGE, done, len(contexts))
    worst = max(relative for _, relative in errors)
    figures = {
        "target": target,
        "tolerance": TOLERANCE,
        "lengths": lengths,
        "absolute": [absolute for absolute, _ in errors],
        "relative": [relative for _, relative in errors],
    }
    detail = (
        f"lengths {', '.join(map(str, lengths))}: largest difference "
        f"{max(absolute for absolute, _ in errors):.2g}, relative {worst:.2g} "
        f"(at most {TOLERANCE:.0e})"
    )
    quantized = decoder.manifest.config.quantize
    if quantized is not None:
        detail = f"weights are {quantized}: {detail.split(' (at most')[0]}, not held to a bound"
        return CheckResult(_STAGE, SKIPPED, detail, figures)
    # A NaN is no number to pass with, so the comparison is written to fail on it.
    return CheckResult(_STAGE, verdict(worst <= TOLERANCE), detail, figures)


def _model_logits(checkpoint: Checkpoint, contexts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Logits [N, V] that the original model gives after each context."""
    import torch

    from spec_compile.export.checkpoint import load_model

    model = load_model(checkpoint, torch.float32)
    model.set_attn_implementation("eager")
    rows = []
    with torch.no_grad():
        for context in contexts:
            given = {"input_ids": torch.tensor([list(context)])}
            if checkpoint.decoder_start_ids:
                given["decoder_input_ids"] = torch.tensor([checkpoint.decoder_start_ids])
            logits = model(**given, use_cache=False).logits
            rows.append(logits[0, -1].float().numpy())
    return np.stack(rows)


def _difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> tuple[float, float]:
    """Largest absolute difference, and that over the largest expected logit."""
    absolute = float(np.abs(found - expected[: len(found)]).max())
    return absolute, absolute / max(float(np.abs(expected).max()), 1.0)
