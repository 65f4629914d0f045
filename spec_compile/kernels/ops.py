"""The acceptance tail as two torch operators: Triton kernels on CUDA, tensor functions elsewhere.

`spec_compile::accept_rejection` and `spec_compile::accept_greedy` take logits, not probabilities.
On CUDA with the triton package they run the kernels, inlined under `torch.compile`; on the CPU, or
without triton, the reference. Under Triton's interpreter (TRITON_INTERPRET=1, set before triton is
first imported) the kernels also run on CPU tensors, which is how they are tested.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spec_compile.kernels import reference
from spec_compile.kernels.schedule import Schedule
from spec_compile.sampling import Sampling

HAS_TRITON = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def runs_kernels(logits: Tensor) -> bool:
    """Whether the operators run the kernels on this tensor, rather than the reference."""
    return HAS_TRITON and (logits.is_cuda or (_INTERPRETED and logits.device.type == "cpu"))


def _operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """A triton_op where there is triton, else a plain operator of the same name and signature."""
    if HAS_TRITON:
        return torch.library.triton_op(name, mutates_args=())
    return torch.library.custom_op(name, mutates_args=())


@_operator("spec_compile::accept_rejection")
def accept_rejection(
    logits: Tensor, draft_tokens: Tensor, draft_probs: Tensor, temperature: Tensor, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Temperature, rejection rule and the token that follows, straight from the logits.

    Tokens are those of `spec_compile.kernels.reference.accept_rejection` up to rounding ties, which
    docs/kernels.md defines. Nothing of size V is written on the way.

    Args:
        logits: [B, k + 1, V] float32, float16 or bfloat16; -inf forbids a token.
        draft_tokens: [B, k] int64, k may be 0; an id outside the vocabulary is rejected.
        draft_probs: [B, k, V] float32, the laws that the draft tokens were drawn from.
        temperature: [B] float32; 0 is greedy.
        uniforms: [B, k + 1] float32 in [0, 1); the last one draws the token that follows.

    Returns:
        output_tokens [B, k + 1] int64 with -1 in the unused tail, and num_emitted [B] int64, 0 in
        a row with NaN or +inf among its logits or its draft tokens' probabilities.
    """
    if runs_kernels(logits):
        from spec_compile.kernels import launch

        schedule = Schedule.of(logits.shape[-1])
        return launch.rejection(logits, draft_tokens, draft_probs, temperature, uniforms, schedule)
    sampling = reference.temperature_only(temperature)
    return reference.accept_rejection(logits, draft_tokens, draft_probs, sampling, uniforms)


@_operator("spec_compile::accept_greedy")
def accept_greedy(logits: Tensor, draft_tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The greedy rule straight from the logits; shapes and results as in `accept_rejection`."""
    if runs_kernels(logits):
        from spec_compile.kernels import launch

        return launch.greedy(logits, draft_tokens, Schedule.of(logits.shape[-1]))
    return reference.accept_greedy(logits, draft_tokens)


def _fake_round(logits: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return (
        logits.new_empty(logits.shape[:2], dtype=torch.int64),
        logits.new_empty(logits.shape[:1], dtype=torch.int64),
    )


accept_rejection.register_fake(_fake_round)
accept_greedy.register_fake(_fake_round)


def accept(
    logits: Tensor,
    draft_tokens: Tensor,
    draft_probs: Tensor,
    sampling: Sampling,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """The rejection tail for any sampling options: the kernels know temperature alone.

    A batch in which any row asks for top-k, top-p or min-p takes the reference path as a whole.
    To know, the options are read on the host: on CUDA, one synchronisation.
    """
    filters = (sampling.top_k > 0) | (sampling.top_p < 1) | (sampling.min_p > 0)
    if bool(filters.any()):
        return reference.accept_rejection(logits, draft_tokens, draft_probs, sampling, uniforms)
    tokens, emitted = accept_rejection(
        logits, draft_tokens, draft_probs, sampling.temperature, uniforms
    )
    return tokens, emitted
